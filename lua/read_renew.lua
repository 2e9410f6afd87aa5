-- Renews the leases of many read holds, and never shortens one. With a lease of -2 it only looks.
-- KEYS: n locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: the positions (from 1) of the locks that are not held by their owners any more
-- Atomic: a lease must not be renewed for a hold that ends between the look and the write.
local lease, lost, due = ARGV[1], {}, {}

-- All keys are looked at before anything is written: while the slot moves to another server, one
-- of the time-out keys may be there already.
for position, lock in ipairs(KEYS) do
  local owner = ARGV[position + 1]
  -- A key that is no hash any more must not keep the others from being renewed.
  local held = redis.pcall('hexists', lock, owner)
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
  elseif held ~= 1 then
    lost[#lost + 1] = position
  else
    local tagged = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
    local timeout = tagged .. ':' .. owner .. ':rwlock_timeout:1'
    due[#due + 1] = { lock, redis.call('pttl', lock), timeout, redis.call('pttl', timeout) }
  end
end
for _, hold in ipairs(due) do
  local lock, lock_left, timeout, timeout_left = unpack(hold)
  if lock_left < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  -- A full server takes the second only behind the first.
  if timeout_left < tonumber(lease) and redis.call('pexpire', timeout, lease) == 0 then
    redis.call('set', timeout, 1, 'px', lease)
  end
end
return lost
