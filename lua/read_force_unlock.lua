-- Frees a read-write lock that is held for reading, whoever holds it, and announces it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 channel, 2 message, 3 what stands before a reader's name in its time-out key
-- RETURNS: -1 nobody held it for reading; else how many subscribers were told
-- Atomic: the message must not come before the lock is free, and a writer must not lose it.
local lock, channel, message, prefix = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('hget', lock, 'mode') ~= 'read' then
  return -1
end
local readers = redis.call('hgetall', lock)
redis.call('del', lock)
-- While the slot moves to another server, some of these keys may be there: they will expire.
for at = 1, #readers, 2 do
  for hold = 1, tonumber(readers[at + 1]) or 0 do
    redis.pcall('del', prefix .. readers[at] .. ':rwlock_timeout:' .. hold)
  end
end
return redis.call('publish', channel, message)
