-- Takes a lock with a block of fencing tokens. Precedes the scripts that do so.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: no other client may take the lock between the check and the write, and no token may be
--   handed out twice.

-- The reply of PTTL for a missing key.
local missing = -2

-- Takes a free lock, or restores this hold's full lease. Returns -1 if the lock is held without
-- expiry, else the holder's remaining lease in ms, or if acquired the first token of the block,
-- negated.
local function take_fenced(lock, counter, lease, owner, size, wake, channel)
  local ttl = redis.call('pttl', lock)
  local held = ttl ~= missing and redis.call('hexists', lock, owner) == 1
  if ttl ~= missing and not held then
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
end
