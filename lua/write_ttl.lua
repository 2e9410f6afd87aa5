-- Reads the remaining lease of a read-write lock that is held for writing.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -2 not held for writing; -1 held without expiry; else the remaining lease in ms
-- Atomic: the remaining lease must belong to the hold that was found.
local lock = KEYS[1]

if redis.call('hget', lock, 'mode') ~= 'write' then
  return -2
end
return redis.call('pttl', lock)
