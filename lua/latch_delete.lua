-- Deletes a latch, which releases its waiters. A repeated call returns the first result.
-- KEYS: 1 the count, 2 the round, 3 the record of the request
-- ARGV: 1 lifetime of the record in ms, 2 channel
-- RETURNS: 1 deleted; 0 there was none
-- Atomic: a count that is set meanwhile must not be deleted by a repeated call.
local latch, round, record = KEYS[1], KEYS[2], KEYS[3]
local lifetime, channel = ARGV[1], ARGV[2]

local done = redis.call('get', record)
if done then
  return tonumber(done)
end
-- GET refuses a key of another type, which DEL would delete.
redis.call('get', round)
if not string.match(redis.call('get', latch) or '0', '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key has no count')
end
local deleted = redis.call('del', latch)
redis.call('del', round)
redis.call('set', record, deleted, 'px', lifetime)
if deleted == 1 then
  -- Redisson publishes 1 here, which leaves its own waiters parked. They look again after 0.
  redis.call('publish', channel, '0')
end
return deleted
