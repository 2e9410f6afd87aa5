-- Ends a hold before its minimum: its permits stay in use until then, without a holder.
-- KEYS: 1 the expiries of the permits in use, a sorted set of ids
-- ARGV: 1 the ms until the minimum ends, 2 .. n + 1 the ids of the permits
-- RETURNS: -1 not all of them were held, the others stay in use; 0 ended
-- Atomic: no permit may be free between the end of its hold and its new expiry.
local expiries, left = KEYS[1], ARGV[1]

local first = 2
local ids = { unpack(ARGV, first, #ARGV) }
local time = redis.call('time')
local expiry = time[1] * 1000 + math.floor(time[2] / 1000) + left
local ended = 0
for _, id in ipairs(ids) do
  if redis.call('zscore', expiries, id) then
    -- A server with full memory refuses ZADD as the first write. This removes nothing.
    redis.call('zrem', expiries, '')
    -- A number that is no time: a repeated call does not find the id, and nobody holds it. In a
    -- slot that moves, ZADD would fail after the removal of the last id.
    redis.call('zadd', expiries, expiry, string.sub(id, 1, 8) .. '\255' .. string.sub(id, 10))
    redis.call('zrem', expiries, id)
    ended = ended + 1
  end
end
return ended == #ids and 0 or -1
