-- Ends a read hold; the last one frees the lock and announces it.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold
-- ARGV: 1 owner, 2 channel, 3 message, 4 the prefix of the readers' time-out keys
-- RETURNS: -1 not held by this owner; 0 released while other holds remain; else the number of
--   subscribers that received the message
-- Atomic: the lock must become free with the end of the last hold, and not before.
local lock, timeout_key, owner, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local message, prefix = ARGV[3], ARGV[4]

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- The lock keeps the longest lease of the remaining readers. All reads precede the first write:
-- while the slot migrates, a time-out key may already be on the other server, which fails the read.
local reading = redis.call('hget', lock, 'mode') == 'read'
local longest, readers = 0, redis.call('hgetall', lock)
for at = 1, #readers, 2 do
  for count = 1, readers[at] ~= owner and tonumber(readers[at + 1]) or 0 do
    local ttl = redis.call('pttl', prefix .. readers[at] .. ':rwlock_timeout:' .. count)
    longest = math.max(longest, ttl)
  end
end
redis.call('hdel', lock, owner)
redis.call('del', timeout_key)
-- In write mode the writer's lease determines the expiry.
if not reading then
  return 0
end
if longest > 0 then
  redis.call('pexpire', lock, longest)
  return 0
end
redis.call('del', lock)
return redis.call('publish', channel, message)
