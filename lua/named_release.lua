-- Takes a hold off its holder's count, and announces that the lock is free if it was the last.
-- KEYS: 1 the lock's hash
-- ARGV: 1 holder, 2 hold, 3 channel, 4 message
-- RETURNS: -1 the hold is not counted; 0 other holds are left; else how many subscribers were told
-- Atomic: the hold and its count must go together, and the message must not come before the lock is free.
local lock, holder, hold, channel, message = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('hdel', lock, hold) == 0 then
  return -1
end
if redis.call('hincrby', lock, holder, -1) > 0 then
  return 0
end
redis.call('del', lock)
return redis.call('publish', channel, message)
