-- Takes all of the locks, or none; restores the full lease of each that its hold already has.
-- KEYS: n the locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: an empty list if all are acquired; else the position (from 1) of a lock that another
--   owner holds, and its remaining lease in ms, negative without expiry
-- Atomic: no other client may take one of the locks between the check and the write.
local lease, ttl = ARGV[1], {}

for position, lock in ipairs(KEYS) do
  ttl[position] = redis.call('pttl', lock)
  if ttl[position] ~= -2 and redis.call('hexists', lock, ARGV[position + 1]) == 0 then
    ask_holder(lock, ARGV[position + 1])
    return { position, ttl[position] }
  end
end
for position, lock in ipairs(KEYS) do
  redis.call('hset', lock, ARGV[position + 1], 1)
  if ttl[position] < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
end
return {}
