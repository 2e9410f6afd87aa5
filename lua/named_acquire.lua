-- Takes a lock that is free, or that this holder has, and counts one hold more; the same hold once.
-- KEYS: 1 the lock's hash
-- ARGV: 1 lease in ms, 2 holder, 3 hold, 4 and 5, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -2 acquired; -1 held without a time to live; else ms that the holder has left
-- Atomic: between the look and the write nobody else may take the lock, and a hold that is asked for again must count once.
local lock, lease, holder, hold, wake, wanted = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local left = redis.call('pttl', lock)
local counted = left ~= -2 and redis.call('hexists', lock, hold) == 1
if left ~= -2 and not counted then
  -- A field without a count is another hold; the fields of a read-write lock are no holders.
  local count = tonumber(redis.call('hget', lock, holder)) or 0
  local mode = redis.call('hget', lock, 'mode')
  if count < 1 or mode == 'read' or mode == 'write' then
    if wake then
      redis.call('publish', wake, wanted)
    end
    return left
  end
end
if not counted then
  redis.call('hincrby', lock, holder, 1)
  redis.call('hset', lock, hold, 0)
end
if left < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return -2
