-- Describes the permits of a semaphore. This text precedes that of each script that does so.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: the numbers must be of one moment.

local number_form = '^%-?%d+$'

-- Text, because a reply cuts a number to 64 bits, and a query must not fail for such a key.
local function digits(number)
  return string.format('%.0f', number)
end

-- Returns the description, and the number of permits in use. `stored` is the value of the key of
-- the free permits, false without one; the capacity is then the one to assume.
local function describe_permits(stored, expiries, capacity, lists_holders)
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local free = tonumber(string.match(stored or '', number_form))
  if stored and not free then
    return redis.error_reply('WRONGTYPE the key has no number of permits')
  end
  local out = redis.call('zcard', expiries)
  free = free or math.max((tonumber(capacity) or 0) - out, 0)
  local expired = redis.call('zcount', expiries, '-inf', now)
  local list = {}
  if lists_holders then
    list = redis.call('zrangebyscore', expiries, '(' .. now, '+inf', 'withscores')
  end
  local in_use = out - expired
  return { digits(free + expired), digits(in_use), digits(free + out), list, digits(now) }, in_use
end

-- Returns the hash of the slots, if it can be read: it may be missing, or on another node while the
-- slot of the cluster moves, or the user has no permission.
local function read_slots(slots)
  local fields = redis.pcall('hgetall', slots)
  return not fields.err and fields or {}
end
