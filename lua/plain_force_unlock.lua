-- Frees a lock, whoever holds it, and announces it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 channel, 2 message
-- RETURNS: -1 it was free; else how many subscribers were told
-- Atomic: the message must not come before the lock is free. A key that is no hash is an error, not freed.
local lock, channel, message = KEYS[1], ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
  return -1
end
redis.call('del', lock)
return redis.call('publish', channel, message)
