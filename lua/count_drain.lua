-- Takes all permits of a plain semaphore. A repeated call of one request returns the same number.
-- KEYS: 1 the count of free permits, 2 the record of the request
-- ARGV: 1 lifetime of the record in ms
-- RETURNS: the number of permits taken, as text; negative if the count was
-- Atomic: a permit that is added meanwhile must not be lost.
local count, record, lifetime = KEYS[1], KEYS[2], ARGV[1]

local done = redis.call('get', record)
if done then
  return done == 'undone' and '0' or done
end
local free = redis.call('get', count) or '0'
if not string.match(free, '^%-?%d+$') then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
-- The record first: a refusal of it changes nothing. DECRBY keeps a time to live.
redis.call('set', record, free, 'px', lifetime)
local left = free ~= '0' and redis.pcall('decrby', count, free)
if type(left) == 'table' then
  redis.call('del', record)
  return left
end
return free
