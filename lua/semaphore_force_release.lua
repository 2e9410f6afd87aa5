-- Takes all permits in use away from their holders, tells these, and announces the free permits.
-- KEYS: 1 the free permits, 2 the expiries of the others
-- ARGV: 1 channel, 2 .. the control channels of the clients that may be holders
-- RETURNS: -1 no permit was in use; else the number of subscribers that received the message, 0 if
--   no permit is free
-- Atomic: a permit must be counted once, and the message must follow the release.
local permits, expiries, channel = KEYS[1], KEYS[2], ARGV[1]

local stored = redis.call('get', permits)
if stored and not string.match(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
local removed = redis.call('zcard', expiries)
if removed == 0 then
  return -1
end
-- Without the permission, or without a listener, a holder finds its loss later.
local first = 2
for _, wake in ipairs({ unpack(ARGV, first, #ARGV) }) do
  redis.pcall('publish', wake, 'freed ' .. permits)
end
-- A server with full memory refuses INCRBY as the first write, so DEL comes first.
redis.call('del', expiries)
-- Without the key the next acquire computes the free permits from the capacity.
if stored then
  local free = redis.call('incrby', permits, removed)
  if free > 0 then
    return redis.call('publish', channel, math.min(free, 2147483647))
  end
end
return 0
