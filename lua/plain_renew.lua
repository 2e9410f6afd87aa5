-- Renews the leases of many holds, and never shortens one. With a lease of -2 it only looks.
-- KEYS: n locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: the positions (from 1) of the locks that are not held by their owners any more
-- Atomic: a lease must not be renewed for a hold that ends between the look and the write.
local lease, lost = ARGV[1], {}

for position, lock in ipairs(KEYS) do
  -- A key that is no hash any more must not keep the others from being renewed.
  local held = redis.pcall('hexists', lock, ARGV[position + 1])
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
  elseif held ~= 1 then
    lost[#lost + 1] = position
  elseif redis.call('pttl', lock) < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
end
return lost
