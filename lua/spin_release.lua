-- Ends a hold without a message: spinning waiters do not listen.
-- KEYS: 1 the lock's hash
-- ARGV: 1 owner
-- RETURNS: -1 not held by this owner; 0 released
-- Atomic: a single command; a script gives all kinds the same form of release.
local lock, owner = KEYS[1], ARGV[1]

if redis.call('hdel', lock, owner) == 0 then
  return -1
end
return 0
