-- Frees a lock, whichever owner holds it, and announces the release.
-- KEYS: 1 the lock's hash
-- ARGV: 1 channel, 2 message
-- RETURNS: -1 the lock was free; else the number of subscribers that received the message
-- Atomic: the message must follow the release. A key that is no lock is an error and stays.
local lock, channel, message = KEYS[1], ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
  return -1
end
local refusal = refusal_of(lock)
if refusal then
  return refusal
end
tell_holders(lock)
redis.call('del', lock)
return redis.call('publish', channel, message)
