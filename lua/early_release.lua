-- Ends a hold before its minimum. The lock stays taken, without a holder; waiters are notified.
-- KEYS: 1 the lock's hash
-- ARGV: 1 owner, 2 the minimum-hold field, 3 ms until the end of the minimum, 4 and 5, except for a
--   spin lock: the channel, and the message
-- RETURNS: -1 not held by this owner; 0 for a spin lock; else the number of subscribers that
--   received the message
-- Atomic: the lock must not become free between the two fields, and the message must follow the new
--   expiry.
local lock, owner, nobody, left = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local channel, message = ARGV[4], ARGV[5]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- With full memory a server refuses HSET as the first write of a script, so PEXPIRE comes first.
redis.call('pexpire', lock, left)
redis.call('hset', lock, nobody, 1)
redis.call('hdel', lock, owner)
return channel and redis.call('publish', channel, message) or 0
