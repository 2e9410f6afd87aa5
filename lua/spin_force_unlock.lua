-- Frees a lock, whoever holds it, and tells nobody: who spins does not listen.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -1 it was free; 0 freed
-- Atomic: a key that is no hash is an error, not freed.
local lock = KEYS[1]

if redis.call('hlen', lock) == 0 then
  return -1
end
redis.call('del', lock)
return 0
