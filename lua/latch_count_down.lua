-- Counts a latch down. A repeated call of one request counts once.
-- KEYS: 1 the count, 2 the round, 3 the record of the request
-- ARGV: 1 lifetime of the record in ms, 2 channel, 3 lifetime of the round in ms
-- RETURNS: 1 counted; 0 the latch is open
-- Atomic: the count and the record must change together, and the message must follow them.
local latch, round, record = KEYS[1], KEYS[2], KEYS[3]
local lifetime, channel, round_lifetime = ARGV[1], ARGV[2], ARGV[3]

local done = redis.call('get', record)
if done then
  return tonumber(done)
end
local count = tonumber(string.match(redis.call('get', latch) or '0', '^%-?%d+$'))
if not count then
  return redis.error_reply('WRONGTYPE the key has no count')
end
local counted = count > 0 and 1 or 0
-- A server with full memory refuses SET and DECR as the first write. This removes nothing.
redis.call('del', record)
local opens = counted == 1 and count <= 1
if opens then
  redis.call('del', latch, round)
elseif counted == 1 then
  redis.call('decr', latch)
  redis.call('pexpire', round, round_lifetime)
end
-- After DECR, which refuses a count beyond 64 bits.
redis.call('set', record, counted, 'px', lifetime)
if opens then
  redis.call('publish', channel, '0')
end
return counted
