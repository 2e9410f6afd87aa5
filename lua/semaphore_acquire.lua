-- Takes all of the permits or none, or restores their full lease if the hold has them already.
-- KEYS: 1 the free permits, 2 the expiries of the others, a sorted set of ids, 3 the claim, 4 only
--   for permits with slots: a hash with the id of the permit that had each slot last
-- ARGV: 1 lease in ms, 2 the capacity to set if there is none, or empty; behind `?` to be told of
--   another one, 3 channel, 4 the claimant, or empty for a caller that does not wait, 5 .. n + 4
--   the ids of the permits
-- RETURNS: 1 -2 acquired; -3 more permits than the capacity; -1 refused, and no permit expires;
--   else refused, and the ms until a permit expires; 2 the number of permits that callers without
--   a claim may take now; after -3 the capacity; 3 after `?` the capacity, if it is another than
--   ARGV 2; else -1 before slots, 4 .. for permits with slots that are acquired: the slot of each
-- Atomic: no other client may take a permit between the check and the write.
local permits, expiries, claim, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, wanted, channel, claimant = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local asks, capacity = string.match(wanted, '^(%??)(%d*)$')

-- The score of a permit of Redisson that never expires.
local never = 922337203685477
-- The number of expired permits that one run reclaims beyond its need, and the most in one run.
local spare, most = 500, 2000

local first = 5
local ids = { unpack(ARGV, first, #ARGV) }
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('get', permits)
local free = tonumber(string.match(stored or '', '^%-?%d+$'))
if stored and not free then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
-- A missing key is a semaphore without a capacity. If that key alone was lost, permits are out.
free = free or (tonumber(capacity) or 0) - redis.call('zcard', expiries)

-- Other callers leave the permits of the claim to the claimant.
local owner, claimed = unpack(redis.call('hmget', claim, 'claimant', 'permits'))
local is_own = owner == claimant
claimed = tonumber(claimed) or 0
local open = is_own and free or free - claimed

-- Too few permits are open. The caller may have some of them already, from an earlier copy of this
-- call, and expired permits count as taken until a run of a script reclaims them.
local gain, held, is_refused = 0, 0, false
if open < #ids then
  for _, score in ipairs(redis.call('zmscore', expiries, unpack(ids))) do
    held = held + ((tonumber(score) or 0) > now and 1 or 0)
  end
end
if open < #ids and held < #ids then
  local total = free + redis.call('zcard', expiries)
  if total < #ids then
    return { -3, math.min(total, 2147483647) }
  end
  local wanted = math.min(#ids - open + spare, most)
  local expired = redis.call('zrangebyscore', expiries, '-inf', now, 'limit', 0, wanted)
  if #expired > 0 then
    gain = redis.call('zrem', expiries, unpack(expired))
    free = free + gain
    if stored then
      -- At once: in a slot that moves, the next command fails if no permit is in use any more.
      redis.call('incrby', permits, gain)
    end
  end
  is_refused = open + gain < #ids - held
end

-- Returns the slot of each permit of the caller: the one that it has, or the smallest that no
-- permit in use has. Only this script writes slots: what a release leaves counts no more.
local function slots_of(ids)
  local position_of, own, used, next_slot = {}, {}, {}, 0
  for position, id in ipairs(ids) do
    position_of[id] = position
  end
  local fields = redis.call('hgetall', slots)
  for at = 1, #fields, 2 do
    local slot, id = tonumber(fields[at]), fields[at + 1]
    if position_of[id] then
      own[position_of[id]] = slot
    end
    used[slot] = redis.call('zscore', expiries, id)
  end
  for position, id in ipairs(ids) do
    if not own[position] then
      while used[next_slot] do
        next_slot = next_slot + 1
      end
      own[position], used[next_slot] = next_slot, id
      redis.call('hset', slots, next_slot, id)
    end
  end
  return own
end

local taken = 0
if not is_refused then
  local members = {}
  for position, id in ipairs(ids) do
    members[2 * position - 1], members[2 * position] = now + lease, id
  end
  -- Counts only the permits that the caller does not have. GT: a late copy shortens no lease.
  taken = redis.call('zadd', expiries, 'gt', unpack(members))
  if owner and is_own then
    redis.call('del', claim)
    claimed = 0
  end
end
free = free - taken
if not stored then
  redis.call('set', permits, free)
elseif taken > 0 then
  redis.call('incrby', permits, -taken)
end
if free > 0 and (gain > 0 or not stored) then
  redis.call('publish', channel, math.min(free, 2147483647))
end

local reply = { -2, math.min(math.max(free - claimed, 0), 2147483647) }
if is_refused then
  local nearest = tonumber(redis.call('zrange', expiries, 0, 0, 'withscores')[2])
  reply[1] = nearest and nearest < never and math.max(nearest - now, 0) or -1
end
local total = asks == '?' and free + redis.call('zcard', expiries)
if total and total ~= tonumber(capacity) then
  reply[3] = math.min(total, 2147483647)
end
if slots and not is_refused then
  reply[3] = reply[3] or -1
  for _, slot in ipairs(slots_of(ids)) do
    reply[#reply + 1] = slot
  end
end
return reply
