-- Undoes an acquire with or without effect: gives its permits back, and withdraws its claim.
-- KEYS: 1 the free permits, 2 the expiries of the others, 3 the claim
-- ARGV: 1 channel, 2 the claimant, or empty, 3 .. n + 2 the ids of the permits
-- RETURNS: -1 not all of them were held; else the number of subscribers that received the message
-- Atomic: a permit must be counted once, and the message must follow the end of the claim.
local permits, expiries, claim = KEYS[1], KEYS[2], KEYS[3]
local channel, claimant = ARGV[1], ARGV[2]

local first = 3
local ids = { unpack(ARGV, first, #ARGV) }
-- Read first: a key of another type must not end the script between two writes.
local stored = redis.call('get', permits)
local free = tonumber(string.match(stored or '', '^%-?%d+$'))
if stored and not free then
  return redis.error_reply('WRONGTYPE the key has no number of permits')
end
local is_own = redis.call('hget', claim, 'claimant') == claimant
local removed = redis.call('zrem', expiries, unpack(ids))
local withdrawn = is_own and redis.call('del', claim) or 0
if free and removed > 0 then
  free = redis.call('incrby', permits, removed)
end
local heard = 0
if free and free > 0 and removed + withdrawn > 0 then
  heard = redis.call('publish', channel, math.min(free, 2147483647))
end
return removed == #ids and heard or -1
