-- Takes a free lock with a block of fencing tokens, or restores this hold's full lease.
-- KEYS: 1 the lock's hash, 2 the last token handed out
-- ARGV: 1 lease in ms, 2 owner, 3 the number of tokens in the block, 4 and 5, only from a caller
--   that will wait: the client's wake channel, and the lock's channel, which is published there on
--   a refusal
-- RETURNS: -1 held without expiry; else the holder's remaining lease in ms, or if acquired the
--   first token of the block, negated
-- Atomic: no other client may take the lock between the check and the write, and no token may be
--   handed out twice.
local lock, counter, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local size, wake, channel = ARGV[3], ARGV[4], ARGV[5]

local ttl = redis.call('pttl', lock)
local held = ttl ~= -2 and redis.call('hexists', lock, owner) == 1
if ttl ~= -2 and not held then
  ask_holder(lock, owner)
  if wake then
    redis.call('publish', wake, channel)
  end
  return ttl
end
local last = tonumber(redis.call('get', counter))
if not held or not last then
  -- The server's time in microseconds exceeds every earlier token if the counter was lost.
  -- Lua would write the number as 1.79e+15, so it is formatted.
  local time = redis.call('time')
  last = math.max(last or 0, time[1] * 1000000 + time[2] - 1) + size
  redis.call('set', counter, string.format('%.0f', last))
end
redis.call('hset', lock, owner, 1)
if ttl < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return size - 1 - last
