-- Ends a hold or a wait, and grants a free lock to the best waiter.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 owner, 2 channel, 3 message, both for waiters of other kinds
-- RETURNS: -1 not held by this owner; 1 granted to the next waiter; else the number of subscribers
--   that received the message
-- Atomic: only the owner may free the lock, and no caller may come before the best waiter.
local hash, queue, clients, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, channel, message = ARGV[1], ARGV[2], ARGV[3]

local was_held, is_granted = finish(lock_of(hash, queue, clients, counter), owner)
if not was_held then
  return -1
end
return is_granted and 1 or redis.call('publish', channel, message)
