-- Sets the capacity of a semaphore. A repeated call of one request sets it once.
-- KEYS: 1 the free permits, 2 the expiries of the others, 3 the record of the request
-- ARGV: 1 capacity, 2 channel, 3 lifetime of the record in ms
-- RETURNS: the number of subscribers that received the message, 0 without a message
-- Atomic: no permit may be taken or given back between the check and the write.
local permits, expiries, record = KEYS[1], KEYS[2], KEYS[3]
local capacity, channel, lifetime = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', record) == 1 then
  return 0
end
local stored = redis.call('get', permits)
local before = tonumber(string.match(stored or '', '^%-?%d+$'))
if stored and not before then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
local free = capacity - redis.call('zcard', expiries)
-- A time to live that a Java process has set stays.
redis.call('set', permits, free, 'keepttl')
redis.call('set', record, capacity, 'px', lifetime)
if free > 0 and free ~= before then
  return redis.call('publish', channel, math.min(free, 2147483647))
end
return 0
