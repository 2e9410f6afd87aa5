-- Frees the lock, whatever its holder, and grants it to the best waiter.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 channel, 2 message, both for waiters of other kinds
-- RETURNS: -1 the lock was free; 1 granted to the next waiter; else the number of subscribers that
--   received the message
-- Atomic: no caller may come before the best waiter. A key that is no lock is an error and stays.
local hash, queue, clients, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, message = ARGV[1], ARGV[2]

local lock = lock_of(hash, queue, clients, counter)
if redis.call('hlen', lock.hash) == 0 then
  grant_to_best(lock)
  return -1
end
local refusal = refusal_of(lock.hash)
if refusal then
  return refusal
end
-- The holder may be a waiter that does not know of its grant yet. So the time since which its
-- client has its terms changes, and the waiter asks again. The client still counts as alive.
local holder, second = unpack(redis.call('hrandfield', lock.hash, 2))
local client = not second and client_of(holder)
-- Read first: a key of another type must not end the script after the release.
local terms = redis.call('hget', lock.clients, client or '')
redis.call('zscore', lock.queue, '')
last_token(lock)
tell_holders(lock.hash)
redis.call('del', lock.hash)
if terms then
  redis.call('hset', lock.clients, client, (string.gsub(terms, '%d+$', digits(micros))))
end
return grant_to_best(lock) and 1 or redis.call('publish', channel, message)
