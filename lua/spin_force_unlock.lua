-- Frees a lock, whichever owner holds it, without a message: spinning waiters do not listen.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -1 the lock was free; 0 freed
-- Atomic: a key that is no lock is an error and stays.
local lock = KEYS[1]

if redis.call('hlen', lock) == 0 then
  return -1
end
local refusal = refusal_of(lock)
if refusal then
  return refusal
end
tell_holders(lock)
redis.call('del', lock)
return 0
