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
local opens = counted == 1 and count <= 1
if opens then
  -- GET refuses a key of another type, which DEL would delete.
  redis.call('get', round)
end
-- A server with full memory refuses SET and DECR as the first write. This removes nothing.
redis.call('del', record)
-- The record first: a refusal of it changes nothing.
redis.call('set', record, counted, 'px', lifetime)
if counted == 0 then
  return 0
end
if opens then
  redis.call('del', latch, round)
  redis.call('publish', channel, '0')
  return 1
end
-- DECR refuses a count beyond 64 bits.
local left = redis.pcall('decr', latch)
if type(left) == 'table' then
  redis.call('del', record)
  return left
end
redis.call('pexpire', round, round_lifetime)
return 1
