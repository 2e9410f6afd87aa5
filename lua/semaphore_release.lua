-- Gives permits back, and announces the free permits.
-- KEYS: 1 the free permits, 2 the expiries of the others
-- ARGV: 1 channel, 2 .. n + 1 the ids of the permits
-- RETURNS: -1 not all of them were held, the others are given back; else the number of subscribers
--   that received the message, 0 if no permit is free
-- Atomic: a permit must be counted once, and the message must follow the release.
local permits, expiries, channel = KEYS[1], KEYS[2], ARGV[1]

local first = 2
local ids = { unpack(ARGV, first, #ARGV) }
local stored = redis.call('get', permits)
if stored and not string.match(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
-- A server with full memory refuses INCRBY as the first write, so ZREM comes first.
local removed = redis.call('zrem', expiries, unpack(ids))
local heard = 0
-- Without the key the next acquire computes the free permits from the capacity.
if removed > 0 and stored then
  local free = redis.call('incrby', permits, removed)
  if free > 0 then
    heard = redis.call('publish', channel, math.min(free, 2147483647))
  end
end
return removed == #ids and heard or -1
