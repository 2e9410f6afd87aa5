-- Sets the permits of a plain semaphore that has none. A repeated call returns the first result.
-- KEYS: 1 the count of free permits, 2 the record of the request
-- ARGV: 1 permits, 2 lifetime of the record in ms, 3 channel
-- RETURNS: 1 set; 0 the semaphore exists
-- Atomic: no other client may create the key between the check and the write.
local count, record, permits, lifetime, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', record) == 1 then
  return 1
end
local stored = redis.call('get', count)
if stored and not string.match(stored, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
elseif stored then
  return 0
end
redis.call('set', count, permits)
redis.call('set', record, permits, 'px', lifetime)
redis.call('publish', channel, math.min(permits, 2147483647))
return 1
