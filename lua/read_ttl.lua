-- Reads the remaining lease of a read-write lock that is held for reading.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -2 not held for reading; -1 held without expiry; else the remaining lease in ms
-- Atomic: the remaining lease must belong to the holds that were found.
local lock = KEYS[1]

local mode = redis.call('hget', lock, 'mode')
-- A writer may read too: a third field, besides the mode and the writer, is a reader.
if mode == 'read' or mode == 'write' and redis.call('hlen', lock) > 2 then
  return redis.call('pttl', lock)
end
return -2
