-- Reclaims expired permits of many semaphores, and keeps the claims of their first waiters.
-- KEYS: n times 3, per semaphore: the free permits, the expiries of the others, the claim
-- ARGV: 1 lifetime of a claim in ms, 2 .. 5 n + 1 per semaphore: channel, claimant, the permits
--   that it waits for, the ms for which it has waited, and `claim` or `wait`
-- RETURNS: 4 numbers per semaphore: 1 if the first waiter has to ask, else 0; the number of permits
--   that callers without a claim may take; the ms until a permit expires, or -1; the capacity; or
--   1, 0, -1 and 0 for a key without a number of permits
-- Atomic: no other client may take a permit between the check and the write.
local lifetime = ARGV[1]

local never, most = 922337203685477, 500
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function keys_of(position)
  local first = 3 * position - 2
  return unpack(KEYS, first, first + 2)
end

local function arguments_of(position)
  local first = 5 * position - 3
  return unpack(ARGV, first, first + 4)
end

-- Returns the claimant and the permits of the claim, after an older caller has taken it over.
local function keep_claim(claim, claimant, wanted, since)
  local fields = redis.call('hmget', claim, 'claimant', 'permits', 'since')
  local owner, claimed, owner_since = unpack(fields)
  if since and owner ~= claimant and since < (tonumber(owner_since) or math.huge) then
    -- A server with full memory refuses HSET as the first write. This removes nothing.
    redis.call('hdel', claim, '')
    redis.call('hset', claim, 'claimant', claimant, 'permits', wanted, 'since', since)
    owner, claimed = claimant, wanted
  end
  if since and owner == claimant then
    redis.call('pexpire', claim, lifetime)
  end
  return owner, tonumber(claimed) or 0
end

local function poll(position)
  local permits, expiries, claim = keys_of(position)
  local channel, claimant, wanted, waited, mode = arguments_of(position)
  local free = tonumber(string.match(redis.call('get', permits) or '', '^%-?%d+$'))
  if not free then
    return { 1, 0, -1, 0 }
  end
  local expired = redis.call('zrangebyscore', expiries, '-inf', now, 'limit', 0, most)
  if #expired > 0 then
    local gain = redis.call('zrem', expiries, unpack(expired))
    free = redis.call('incrby', permits, gain)
  end
  local capacity = free + redis.call('zcard', expiries)
  wanted = tonumber(wanted)
  local since = mode == 'claim' and wanted <= capacity and now - waited
  local owner, claimed = keep_claim(claim, claimant, wanted, since)
  local others = math.min(math.max(free - claimed, 0), 2147483647)
  if #expired > 0 and free > 0 then
    redis.call('publish', channel, math.min(free, 2147483647))
  end
  local open = owner == claimant and free or others
  local must_ask = (wanted <= open or capacity < wanted) and 1 or 0
  local nearest = tonumber(redis.call('zrange', expiries, 0, 0, 'withscores')[2])
  local left = nearest and nearest < never and math.max(nearest - now, 0) or -1
  return { must_ask, others, left, math.min(capacity, 2147483647) }
end

local replies = {}
for position = 1, #KEYS / 3 do
  -- A key of another type must not prevent the polls of others. An acquire finds it too.
  local is_done, reply = pcall(poll, position)
  if not is_done and not string.find(reply.err or reply, 'WRONGTYPE') then
    return reply.err and reply or { err = reply }
  end
  for _, number in ipairs(is_done and reply or { 1, 0, -1, 0 }) do
    replies[#replies + 1] = number
  end
end
return replies
