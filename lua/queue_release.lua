-- Ends a hold or a wait, and grants a free lock to the best waiter.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 owner, 2 channel and 3 message for waiters of other kinds
-- RETURNS: -1 not held by this owner; 1 granted to the next waiter; else the number of subscribers
--   that received the message
-- Atomic: only the owner may free the lock, and no caller may come before the best waiter.
local lock, owner, channel, message = lock_at(1), ARGV[1], ARGV[2], ARGV[3]

local was_held = redis.call('hdel', lock.hash, owner) == 1
if not was_held then
  redis.call('zrem', lock.queue, owner)
end
local is_granted = redis.call('exists', lock.hash) == 0 and grant_to_best(lock)
if not was_held then
  forget_clients(lock)
  return -1
end
return is_granted and 1 or redis.call('publish', channel, message)
