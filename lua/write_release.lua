-- Ends a write hold. What its owner reads meanwhile goes on, and others may read too then.
-- KEYS: 1 the lock's hash
-- ARGV: 1 owner, 2 channel, 3 message, 4 what stands before a reader's name in its time-out key
-- RETURNS: -1 not held by this owner; else how many subscribers were told
-- Atomic: only the owner may free the lock, and the message must not come before the lock is free.
local lock, owner, channel, message, prefix = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- The lock lasts as long as the longest of those who read. They are looked at before anything is
-- written: while the slot moves to another server, one of these keys may be there already.
local longest, readers = 0, redis.call('hgetall', lock)
for at = 1, #readers, 2 do
  for hold = 1, readers[at] ~= owner and tonumber(readers[at + 1]) or 0 do
    local left = redis.call('pttl', prefix .. readers[at] .. ':rwlock_timeout:' .. hold)
    longest = math.max(longest, left)
  end
end
redis.call('hdel', lock, owner, 'mode')
if longest > 0 then
  redis.call('hset', lock, 'mode', 'read')
  redis.call('pexpire', lock, longest)
else
  redis.call('del', lock)
end
return redis.call('publish', channel, message)
