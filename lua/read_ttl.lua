-- Looks how long a read-write lock is still held for reading.
-- KEYS: 1 the lock's hash
-- ARGV: none
-- RETURNS: -2 nobody reads; -1 held without a time to live; else ms that the holders have left
-- Atomic: what is left must be what is left of those holds.
local lock = KEYS[1]

local mode = redis.call('hget', lock, 'mode')
-- Who writes may read too: beside the mode and the writer there is a reader then.
if mode == 'read' or mode == 'write' and redis.call('hlen', lock) > 2 then
  return redis.call('pttl', lock)
end
return -2
