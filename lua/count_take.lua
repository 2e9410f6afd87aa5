-- Takes permits of a plain semaphore, all or none. A repeated call of one request takes them once.
-- KEYS: 1 the count of free permits, 2 the record of the request
-- ARGV: 1 permits, 2 lifetime of the record in ms
-- RETURNS: 1 1 taken; 0 refused; 2 the number of permits that are left, at least 0
-- Atomic: no other client may take the permits between the check and the write, and a repeated call
--   must find the record of the first.
local count, record, permits, lifetime = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local done = redis.call('get', record)
local free = tonumber(string.match(redis.call('get', count) or '0', '^%-?%d+$'))
if not free then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
local function left()
  return math.min(math.max(free, 0), 2147483647)
end
if done or free < tonumber(permits) then
  return { done and done ~= 'undone' and 1 or 0, left() }
end
-- The record first: a refusal of it changes nothing.
redis.call('set', record, permits, 'px', lifetime)
free = redis.pcall('decrby', count, permits)
if type(free) == 'table' then
  redis.call('del', record)
  return free
end
return { 1, left() }
