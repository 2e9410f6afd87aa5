-- Counts the permits of a semaphore, and lists those that are in use.
-- KEYS: 1 the free permits, 2 the expiries of the others
-- ARGV: 1 the capacity to assume if there is none, or empty, 2 `counts` or `holders`
-- RETURNS: 1 the available permits, as text: free or expired, 2 the permits in use, as text, 3 the
--   capacity, as text, 4 for holders the ids of the permits in use and their expiries in ms since
--   1970, 5 the server's time in ms
-- Atomic: the numbers must be of one moment.
local permits, expiries, capacity, subject = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('get', permits)
local free = tonumber(string.match(stored or '', '^%-?%d+$'))
if stored and not free then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
local out = redis.call('zcard', expiries)
free = free or math.max((tonumber(capacity) or 0) - out, 0)
local expired = redis.call('zcount', expiries, '-inf', now)
local list = {}
if subject == 'holders' then
  list = redis.call('zrangebyscore', expiries, '(' .. now, '+inf', 'withscores')
end
-- Text, because a reply cuts a number to 64 bits, and a query must not fail for such a key.
local function digits(number)
  return string.format('%.0f', number)
end
return { digits(free + expired), digits(out - expired), digits(free + out), list, digits(now) }
