-- Ends a hold and tells nobody: who spins does not listen.
-- KEYS: 1 the lock's hash
-- ARGV: 1 owner
-- RETURNS: -1 not held by this owner; 0 released
-- Atomic: by itself; it is a script so that all kinds are released alike.
local lock, owner = KEYS[1], ARGV[1]

if redis.call('hdel', lock, owner) == 0 then
  return -1
end
return 0
