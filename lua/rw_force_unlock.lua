-- Frees a read-write lock that is held in this mode, whichever owner holds it, and announces it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 channel, 2 message, 3 the prefix of the readers' time-out keys, 4 read or write
-- RETURNS: -1 not held in this mode; else the number of subscribers that received the message
-- Atomic: the message must follow the release, and a lock in the other mode must stay. A
--   key that is no lock is an error and stays.
local lock, channel, message, prefix, mode = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('hget', lock, 'mode') ~= mode then
  return -1
end
local refusal = refusal_of(lock)
if refusal then
  return refusal
end
local readers = redis.call('hgetall', lock)
tell_holders(lock)
redis.call('del', lock)
-- While the slot migrates, a time-out key may already be on the other server. It expires there.
-- GETDEL leaves a key of another type.
for at = 1, #readers, 2 do
  for count = 1, tonumber(readers[at + 1]) or 0 do
    redis.pcall('getdel', prefix .. readers[at] .. ':rwlock_timeout:' .. count)
  end
end
return redis.call('publish', channel, message)
