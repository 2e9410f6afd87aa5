-- Takes a lock that is free, or that this owner has, and counts one hold more; the same request once.
-- KEYS: 1 the lock's hash, 2 what became of this request
-- ARGV: 1 lease in ms, 2 owner, 3 ms for which the request is remembered, 4 and 5, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -2 acquired; -1 held without a time to live; else ms that the holder has left
-- Atomic: between the look and the write nobody else may take the lock, and a request that is sent again must count once.
local lock, request, lease, owner, memory, wake, wanted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local left = redis.call('pttl', lock)
local mine = left == -2 or redis.call('hexists', lock, owner) == 1
local became = redis.call('get', request)
-- A request that was ended before comes late: nobody waits for its answer.
if not mine or became and became ~= 'taken' then
  if wake then
    redis.call('publish', wake, wanted)
  end
  return math.max(left, -1)
end
if left == -2 or not became then
  redis.call('hincrby', lock, owner, 1)
end
redis.call('set', request, 'taken', 'px', memory)
if left < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return -2
