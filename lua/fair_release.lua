-- Ends a hold, and tells the first of those who wait.
-- KEYS: 1 the lock's hash, 2 the queue of those who wait, 3 when each of them is taken for dead
-- ARGV: 1 owner, 2 what stands before a waiter's name in its channel, 3 message
-- RETURNS: -1 not held by this owner; else how many subscribers were told
-- Atomic: only the owner may free the lock, and the message must not come before the lock is free.
local lock, queue, deaths, owner, channel, message = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]

if redis.call('hdel', lock, owner) == 0 then
  return -1
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local head = redis.call('lindex', queue, 0)
while head and (tonumber(redis.call('zscore', deaths, head)) or 0) <= now do
  redis.call('lpop', queue)
  redis.call('zrem', deaths, head)
  head = redis.call('lindex', queue, 0)
end
return head and redis.call('publish', channel .. head, message) or 0
