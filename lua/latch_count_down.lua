-- Counts a latch down. A repeated call of one request counts once.
-- KEYS: 1 the count, 2 the round, 3 the record of the request
-- ARGV: 1 lifetime of the record in ms, 2 channel, 3 lifetime of the round in ms, 4 the round to
--   which the request belongs, or empty for the present one
-- RETURNS: 1 counted; 0 the latch is open, or in another round
-- Atomic: the count and the record must change together, and the message must follow them.
local latch, round, record = KEYS[1], KEYS[2], KEYS[3]
local lifetime, channel, round_lifetime, expected = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local done = redis.call('get', record)
if done then
  return tonumber(done)
end
local stored = redis.call('get', latch)
local count = tonumber(stored or 0)
if not count then
  return redis.error_reply('WRONGTYPE the key has no count')
end
local present = redis.call('get', round)
local is_other = expected ~= '' and present and present ~= expected
local counted = (count > 0 and not is_other) and 1 or 0
-- A server with full memory refuses SET and DECR as the first write. This removes nothing.
redis.call('del', record)
redis.call('set', record, counted, 'px', lifetime)
if counted == 0 then
  return 0
end
if count > 1 then
  redis.call('decr', latch)
  redis.call('pexpire', round, round_lifetime)
else
  redis.call('del', latch, round)
  redis.call('publish', channel, '0')
end
return 1
