-- Frees a lock, whichever owner holds it, and notifies the waiter at the head of the queue.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiters' timeouts, a sorted set
-- ARGV: 1 the prefix of the waiters' channels, 2 message
-- RETURNS: -1 the lock was free; else the number of subscribers that received the message
-- Atomic: the message must follow the release. A key that is no lock is an error and stays.
local lock, queue, timeouts, channel, message = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
  return -1
end
local refusal = refusal_of(lock)
if refusal then
  return refusal
end
-- Read first: a queue of another type must not end the script after the release.
local head = head_of(queue, timeouts)
tell_holders(lock)
redis.call('del', lock)
return head and redis.call('publish', channel .. head, message) or 0
