-- Undoes a request that took permits of a plain semaphore, now and for late copies of the request.
-- KEYS: 1 the count of free permits, 2 the record of the request
-- ARGV: 1 lifetime of the record in ms, 2 channel
-- RETURNS: 0 nothing to undo; 1 undone
-- Atomic: the count and the record must change together.
local count, record, lifetime, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local taken = redis.call('get', record)
-- A server with full memory refuses SET as the first write, so PEXPIRE comes first. In a slot that
-- moves, SET would fail after DEL.
redis.call('pexpire', record, lifetime)
redis.call('set', record, 'undone', 'px', lifetime)
if not taken or taken == 'undone' or redis.call('exists', count) == 0 then
  return 0
end
local free = redis.call('incrby', count, taken)
if free > 0 then
  redis.call('publish', channel, math.min(free, 2147483647))
end
return 1
