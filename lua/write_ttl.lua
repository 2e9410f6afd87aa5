-- Looks how long a read-write lock is still held for writing.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -2 nobody writes; -1 held without a time to live; else ms that the holder has left
-- Atomic: what is left must be what is left of that hold.
local lock = KEYS[1]

if redis.call('hget', lock, 'mode') ~= 'write' then
  return -2
end
return redis.call('pttl', lock)
