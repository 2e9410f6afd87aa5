-- Frees a lock, whoever holds it, and tells the first of those who wait.
-- KEYS: 1 the lock's hash, 2 the queue of those who wait, 3 when each of them is taken for dead
-- ARGV: 1 what stands before a waiter's name in its channel, 2 message
-- RETURNS: -1 it was free; else how many subscribers were told
-- Atomic: the message must not come before the lock is free. A key that is no hash is an error, not freed.
local lock, queue, deaths, channel, message = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
  return -1
end
redis.call('del', lock)
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local head = redis.call('lindex', queue, 0)
while head and (tonumber(redis.call('zscore', deaths, head)) or 0) <= now do
  redis.call('lpop', queue)
  redis.call('zrem', deaths, head)
  head = redis.call('lindex', queue, 0)
end
return head and redis.call('publish', channel .. head, message) or 0
