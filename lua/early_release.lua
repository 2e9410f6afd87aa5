-- Ends a hold before its minimum. The lock stays taken, without a holder; waiters are notified.
-- KEYS: 1 the lock's hash, 2 and 3, only of a fair lock: the queue, and the waiters' timeouts, a
--   sorted set
-- ARGV: 1 owner, 2 the minimum-hold field, 3 ms until the end of the minimum, 4 and 5, except for a
--   spin lock: the channel (of a fair lock, the prefix of the waiters' channels), and the message
-- RETURNS: -1 not held by this owner; 0 no waiter to notify, and for a spin lock; else the number
--   of subscribers that received the message
-- Atomic: the lock must not become free between the two fields, and the message must follow the new
--   expiry.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, nobody, left, channel, message = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- With full memory a server refuses HSET as the first write of a script, so PEXPIRE comes first.
redis.call('pexpire', lock, left)
redis.call('hset', lock, nobody, 1)
redis.call('hdel', lock, owner)
if not channel then
  return 0
end
if not queue then
  return redis.call('publish', channel, message)
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local head = redis.call('lindex', queue, 0)
while head and (tonumber(redis.call('zscore', timeouts, head)) or 0) <= now do
  redis.call('lpop', queue)
  redis.call('zrem', timeouts, head)
  head = redis.call('lindex', queue, 0)
end
return head and redis.call('publish', channel .. head, message) or 0
