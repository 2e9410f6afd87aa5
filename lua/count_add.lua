-- Adds permits to a plain semaphore. A repeated call of one request adds them once.
-- KEYS: 1 the count of free permits, 2 the record of the request
-- ARGV: 1 permits, may be negative, 2 lifetime of the record in ms, 3 channel
-- RETURNS: the number of subscribers that received the message, 0 without a message
-- Atomic: the count and the record must change together, and the message must follow them.
local count, record, permits, lifetime, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', record) == 1 then
  return 0
end
-- A server with full memory refuses SET and INCRBY as the first write. This removes nothing.
redis.call('del', record)
-- The record first: a refusal of it changes nothing.
redis.call('set', record, 0, 'px', lifetime)
local free = redis.pcall('incrby', count, permits)
if type(free) == 'table' then
  redis.call('del', record)
  if string.find(free.err, 'not an integer', 1, true) then
    return redis.error_reply('WRONGTYPE the key has no number of permits')
  end
  return free
end
if free > 0 then
  return redis.call('publish', channel, math.min(free, 2147483647))
end
return 0
