-- Ends a read hold, and announces that the lock is free if it was the last.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold
-- ARGV: 1 owner, 2 channel, 3 message, 4 what stands before a reader's name in its time-out key
-- RETURNS: -1 not held by this owner; 0 released, and others hold it; else how many subscribers were told
-- Atomic: the lock must be free when the last reader is gone, and not before.
local lock, timeout, owner, channel, message, prefix = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- The lock lasts as long as the longest of those who read. They are looked at before anything is
-- written: while the slot moves to another server, one of these keys may be there already.
local reading, longest, readers = redis.call('hget', lock, 'mode') == 'read', 0, redis.call('hgetall', lock)
for at = 1, #readers, 2 do
  for hold = 1, readers[at] ~= owner and tonumber(readers[at + 1]) or 0 do
    local left = redis.call('pttl', prefix .. readers[at] .. ':rwlock_timeout:' .. hold)
    longest = math.max(longest, left)
  end
end
redis.call('hdel', lock, owner)
redis.call('del', timeout)
-- The lease of who writes, and reads too, is another matter.
if not reading then
  return 0
end
if longest > 0 then
  redis.call('pexpire', lock, longest)
  return 0
end
redis.call('del', lock)
return redis.call('publish', channel, message)
