-- Frees the lock, whatever its holder, and grants it to the best waiter.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 channel, 2 message, both for waiters of other kinds
-- RETURNS: -1 the lock was free; 1 granted to the next waiter; else the number of subscribers that
--   received the message
-- Atomic: no caller may come before the best waiter.
local hash, queue, clients, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, message = ARGV[1], ARGV[2]

local lock = lock_of(hash, queue, clients, counter)
-- The holder may be a waiter that does not know of its grant yet. So the time since which its
-- client has its terms changes, and the waiter asks again. The client still counts as alive.
local holders = redis.pcall('hkeys', lock.hash)
local was_held = redis.call('del', lock.hash) == 1
local client = #holders == 1 and client_of(holders[1])
local terms = client and redis.call('hget', lock.clients, client)
if terms then
  redis.call('hset', lock.clients, client, (string.gsub(terms, '%d+$', digits(micros))))
end
local is_granted = grant_to_best(lock)
if not was_held then
  return -1
end
return is_granted and 1 or redis.call('publish', channel, message)
