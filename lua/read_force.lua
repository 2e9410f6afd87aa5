-- Frees a read-write lock that is held for reading, whoever holds it, and announces it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 channel, 2 message
-- RETURNS: -1 nobody held it for reading; else how many subscribers were told
-- Atomic: the message must not come before the lock is free, and a writer must not lose it.
local lock, channel, message = KEYS[1], ARGV[1], ARGV[2]

if redis.call('hget', lock, 'mode') ~= 'read' then
  return -1
end
redis.call('del', lock)
return redis.call('publish', channel, message)
