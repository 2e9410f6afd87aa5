-- Takes a read-write lock that is free for writing, or sees to the full lease if this hold has it.
-- KEYS: 1 the lock's hash
-- ARGV: 1 lease in ms, 2 owner, 3 and 4, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -2 acquired; -1 held without a time to live; else ms that the holders have left
-- Atomic: between the look and the write nobody else may take the lock.
local lock, lease, owner, wake, wanted = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local left = redis.call('pttl', lock)
if left == -2 then
  redis.call('hset', lock, 'mode', 'write', owner, 1)
  redis.call('pexpire', lock, lease)
  return -2
end
if redis.call('hexists', lock, owner) == 1 then
  if left < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  return -2
end
if wake then
  redis.call('publish', wake, wanted)
end
return left
