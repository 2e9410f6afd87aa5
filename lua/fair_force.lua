-- Frees a lock, whoever holds it, and tells the first of those who wait.
-- KEYS: 1 the lock's hash, 2 the queue of those who wait
-- ARGV: 1 what stands before a waiter's name in its channel, 2 message
-- RETURNS: -1 it was free; else how many subscribers were told
-- Atomic: the message must not come before the lock is free. A key that is no hash is an error, not freed.
local lock, queue, channel, message = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
  return -1
end
redis.call('del', lock)
local head = redis.call('lindex', queue, 0)
return head and redis.call('publish', channel .. head, message) or 0
