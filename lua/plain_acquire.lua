-- Takes a free lock, or restores the full lease if this hold already has the lock.
-- KEYS: 1 the lock's hash
-- ARGV: 1 lease in ms, 2 owner, 3 and 4, only from a caller that will wait: the client's wake
--   channel, and the lock's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the holder's remaining lease in ms
-- Atomic: no other client may take the lock between the check and the write.
local lock, lease, owner, wake, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local ttl = redis.call('pttl', lock)
if ttl == -2 then
  redis.call('hset', lock, owner, 1)
  redis.call('pexpire', lock, lease)
  return -2
end
if redis.call('hexists', lock, owner) == 1 then
  if ttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  return -2
end
ask_holder(lock, owner)
if wake then
  redis.call('publish', wake, channel)
end
return ttl
