-- Ends a hold and notifies the waiter at the head of the queue.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiters' timeouts, a sorted set
-- ARGV: 1 owner, 2 the prefix of the waiters' channels, 3 message, 4 and 5, only before the minimum
--   of the hold: the minimum-hold field, and ms until the end of the minimum
-- RETURNS: -1 not held by this owner; else the number of subscribers that received the message
-- Atomic: only the owner may free the lock, and the message must follow the release.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, channel, message, nobody, left = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- Before the minimum the lock stays taken, without a holder. With full memory a server refuses HSET
-- as the first write of a script, so PEXPIRE comes first.
if left then
  redis.call('pexpire', lock, left)
  redis.call('hset', lock, nobody, 1)
end
redis.call('hdel', lock, owner)
local head = head_of(queue, timeouts)
return head and redis.call('publish', channel .. head, message) or 0
