-- Takes one off a holder's count, whoever counted it: the oldest hold, if the count is not another library's.
-- KEYS: 1 the lock's hash
-- ARGV: 1 holder, 2 channel, 3 message
-- RETURNS: -1 not held by this holder; 0 other holds are left; else how many subscribers were told
-- Atomic: a hold and its count must go together, and the message must not come before the lock is free.
local lock, holder, channel, message = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local count, mode = tonumber(redis.call('hget', lock, holder)) or 0, redis.call('hget', lock, 'mode')
if count < 1 or mode == 'read' or mode == 'write' then
  return -1
end
local fields, oldest = redis.call('hgetall', lock), ''
for at = #fields - 1, 1, -2 do
  oldest = fields[at + 1] == '0' and fields[at] or oldest
end
redis.call('hdel', lock, oldest)
if redis.call('hincrby', lock, holder, -1) > 0 then
  return 0
end
redis.call('del', lock)
return redis.call('publish', channel, message)
