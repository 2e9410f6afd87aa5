-- Subtracts a hold from its holder's count; the last one frees the lock and announces it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 holder, 2 hold, 3 channel, 4 message
-- RETURNS: -1 the hold is not counted; 0 other holds remain; else the number of subscribers that
--   received the message
-- Atomic: the hold and the count must change together, and the message must follow the release.
local lock, holder, hold, channel, message = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('hdel', lock, hold) == 0 then
  return -1
end
if redis.call('hincrby', lock, holder, -1) > 0 then
  return 0
end
-- Beside the holder, only holds may be left whose counts another program has subtracted.
if redis.call('hlen', lock) == 1 or not refusal_of(lock) then
  redis.call('del', lock)
else
  redis.call('hdel', lock, holder)
end
return redis.call('publish', channel, message)
