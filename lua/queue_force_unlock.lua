-- Frees the lock, whatever its holder, and grants it to the best waiter.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 channel and 2 message for waiters of other kinds
-- RETURNS: -1 the lock was free; 1 granted to the next waiter; else the number of subscribers that
--   received the message
-- Atomic: no caller may come before the best waiter.
local lock, channel, message = lock_at(1), ARGV[1], ARGV[2]

local was_held = redis.call('del', lock.hash) == 1
local is_granted = grant_to_best(lock)
if not was_held then
  return -1
end
return is_granted and 1 or redis.call('publish', channel, message)
