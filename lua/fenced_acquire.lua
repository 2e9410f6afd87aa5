-- Takes a lock that is free with a block of fencing tokens, or sees to the full lease if this hold has it.
-- KEYS: 1 the lock's hash, 2 the last token that was given out
-- ARGV: 1 lease in ms, 2 owner, 3 how many tokens, 4 and 5, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -1 held without a time to live; else ms that the holder has left, or acquired: the first token of the block, below zero
-- Atomic: between the look and the write nobody else may take the lock, and no two holds may get the same tokens.
local lock, counter, lease, owner, size, wake, wanted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local left = redis.call('pttl', lock)
local again = left ~= -2 and redis.call('hexists', lock, owner) == 1
if left ~= -2 and not again then
  if wake then
    redis.call('publish', wake, wanted)
  end
  return left
end
local last = tonumber(redis.call('get', counter))
if not again or not last then
  -- Larger than any token before, also if the counter was lost. Lua would print it as 1.79e+15.
  local time = redis.call('time')
  last = math.max(last or 0, time[1] * 1000000 + time[2] - 1) + size
  redis.call('set', counter, string.format('%.0f', last))
end
redis.call('hset', lock, owner, 1)
if left < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return size - 1 - last
