-- Sets the count of an open latch, which begins a round. A repeated call returns the first result.
-- KEYS: 1 the count, 2 the round, 3 the record of the request
-- ARGV: 1 count, 2 lifetime of the record in ms, 3 channel, 4 lifetime of the round in ms
-- RETURNS: 1 set; 0 the latch has a count
-- Atomic: no other client may set a count between the check and the write.
local latch, round, record = KEYS[1], KEYS[2], KEYS[3]
local count, lifetime, channel, round_lifetime = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('exists', record) == 1 then
  return 1
end
local before = tonumber(string.match(redis.call('get', latch) or '0', '^%-?%d+$'))
if not before then
  return redis.error_reply('WRONGTYPE the key has no count')
end
if before > 0 then
  return 0
end
-- GET refuses a key of another type, which SET would replace.
redis.call('get', round)
local time = redis.call('time')
redis.call('set', latch, count)
redis.call('set', round, string.format('%d%06d', time[1], time[2]), 'px', round_lifetime)
redis.call('set', record, count, 'px', lifetime)
redis.call('publish', channel, '1')
return 1
