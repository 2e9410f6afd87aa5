-- Extends the leases of many read holds, never shortens one. A lease of -2 only checks the holds.
-- KEYS: n the locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: the positions (from 1) of the locks that their owners no longer hold
-- Atomic: no lease may be extended for a hold that ends between the check and the write.
local lease, lost, held_locks = ARGV[1], {}, {}

-- All reads precede the first write: while the slot migrates, a time-out key may already be on the
-- other server, which fails the read.
for position, lock in ipairs(KEYS) do
  local owner = ARGV[position + 1]
  -- A key that is no longer a hash must not prevent the renewal of the others.
  local held = redis.pcall('hexists', lock, owner)
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
  elseif held ~= 1 then
    lost[#lost + 1] = position
  else
    local tagged = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
    local timeout_key = tagged .. ':' .. owner .. ':rwlock_timeout:1'
    local ttl, timeout_ttl = redis.call('pttl', lock), redis.call('pttl', timeout_key)
    held_locks[#held_locks + 1] = { lock, ttl, timeout_key, timeout_ttl }
  end
end
for _, hold in ipairs(held_locks) do
  local lock, ttl, timeout_key, timeout_ttl = unpack(hold)
  if ttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  -- A server whose memory is full refuses SET as the first write of a script, so PEXPIRE precedes.
  if timeout_ttl < tonumber(lease) and redis.call('pexpire', timeout_key, lease) == 0 then
    redis.call('set', timeout_key, 1, 'px', lease)
  end
end
return lost
