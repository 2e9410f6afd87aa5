-- Ends a hold and announces that the lock is free.
-- KEYS: 1 the lock's hash
-- ARGV: 1 owner, 2 channel, 3 message
-- RETURNS: -1 not held by this owner; else the number of subscribers that received the message
-- Atomic: only the owner may free the lock, and the message must follow the release.
local lock, owner, channel, message = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('hdel', lock, owner) == 0 then
  return -1
end
return redis.call('publish', channel, message)
