-- Takes one hold from an owner's count, the same request's once, and announces that the lock is free if it was the last.
-- KEYS: 1 the lock's hash, 2 what became of the request that counted it
-- ARGV: 1 owner, 2 channel, 3 message, 4 ms for which the request is remembered, 5 whether a hold is taken off for a request that nothing is known of: 1 or else
-- RETURNS: -1 not held by this owner; 0 released before, or holds are left; else how many subscribers were told
-- Atomic: only the owner may free the lock, the message must not come before the lock is free, and a release that is sent again must count once.
local lock, request, owner, channel, message, memory, unknown = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local became = redis.call('getdel', request)
local count = tonumber(redis.call('hget', lock, owner))
local counts = became == 'taken' or not became and unknown == '1'
if became ~= 'released' and not (count and counts) then
  redis.call('set', request, 'lost', 'px', memory)
  return -1
end
redis.call('set', request, 'released', 'px', memory)
if became == 'released' or redis.call('hincrby', lock, owner, -1) > 0 then
  return 0
end
redis.call('hdel', lock, owner)
return redis.call('publish', channel, message)
