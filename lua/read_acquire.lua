-- Takes a read-write lock for reading if nobody else writes, or sees to the full lease if this hold has it.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold
-- ARGV: 1 lease in ms, 2 owner, 3 the owner of the write hold under which it may read, empty if there is none, 4 and 5, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -2 acquired; -1 held without a time to live; else ms that the holder has left
-- Atomic: between the look and the write nobody may take the lock for writing.
local lock, timeout, lease, owner, writer, wake, wanted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')
if left == -2 then
  redis.call('hset', lock, 'mode', 'read')
elseif mode ~= 'read' and (mode ~= 'write' or redis.call('hexists', lock, writer) == 0) then
  if wake then
    redis.call('publish', wake, wanted)
  end
  return left
end
redis.call('hset', lock, owner, 1)
if redis.call('pttl', timeout) < tonumber(lease) then
  redis.call('set', timeout, 1, 'px', lease)
end
-- Never sooner than the end of another's lease.
if left < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return -2
