-- Takes many locks that are free, or sees to the full leases of those that these holds have, or takes none.
-- KEYS: n locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: an empty list if all are acquired; else the position (from 1) of one that another holds, and ms that it has left, less than 0 without a time to live
-- Atomic: all or none; between the look and the write nobody else may take one of the locks.
local lease, left = ARGV[1], {}

for position, lock in ipairs(KEYS) do
  left[position] = redis.call('pttl', lock)
  if left[position] ~= -2 and redis.call('hexists', lock, ARGV[position + 1]) == 0 then
    return { position, left[position] }
  end
end
for position, lock in ipairs(KEYS) do
  redis.call('hset', lock, ARGV[position + 1], 1)
  if left[position] < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
end
return {}
