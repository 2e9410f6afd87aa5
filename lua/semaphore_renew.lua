-- Extends the leases of many permits and never shortens one. A lease of -2 only checks them.
-- KEYS: n the expiries of the semaphore of each permit
-- ARGV: 1 lease in ms, 2 .. n + 1 the ids of the permits, in the order of KEYS
-- RETURNS: the positions (from 1) of the permits that are gone
-- Atomic: no lease may be extended for a permit that is reclaimed between the check and the write.
local lease, lost = ARGV[1], {}

local time = redis.call('time')
local expiry = time[1] * 1000 + math.floor(time[2] / 1000) + lease
local has_written = lease == '-2'
for position, expiries in ipairs(KEYS) do
  local id = ARGV[position + 1]
  -- A key that is no sorted set must not prevent the renewal of the others.
  local score = redis.pcall('zscore', expiries, id)
  if type(score) == 'table' and not string.find(score.err, 'WRONGTYPE') then
    return score
  elseif type(score) ~= 'string' then
    lost[#lost + 1] = position
  elseif lease ~= '-2' and tonumber(score) < expiry then
    if not has_written then
      -- A server with full memory refuses ZADD as the first write. This removes nothing.
      has_written = redis.call('zrem', expiries, '') == 0
    end
    redis.call('zadd', expiries, expiry, id)
  end
end
return lost
