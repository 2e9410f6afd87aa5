-- Deletes the result of work. A repeated call returns the first result.
-- KEYS: 1 the result, a hash, 2 the record of the request
-- ARGV: 1 lifetime of the record in ms
-- RETURNS: 1 deleted; 0 there was none
-- Atomic: a repeated call must not delete the result of a later run.
local result, record, lifetime = KEYS[1], KEYS[2], ARGV[1]

local done = redis.call('get', record)
if done then
  return tonumber(done)
end
-- HMGET refuses a key of another type, which DEL would delete.
redis.call('hmget', result, 'at')
local deleted = redis.call('del', result)
redis.call('set', record, deleted, 'px', lifetime)
return deleted
