-- Subtracts one from a holder's count: the oldest hold, or a count that another library added.
-- KEYS: 1 the lock's hash
-- ARGV: 1 holder, 2 channel, 3 message
-- RETURNS: -1 not held by this holder; 0 other holds remain; else the number of subscribers that
--   received the message
-- Atomic: the hold and the count must change together, and the message must follow the release.
--   A hash that is no lock is an error and stays.
local lock, holder, channel, message = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local count = tonumber(redis.call('hget', lock, holder)) or 0
local mode = redis.call('hget', lock, 'mode')
if count < 1 or mode == 'read' or mode == 'write' then
  return -1
end
local fields, oldest = redis.call('hgetall', lock), ''
for at = #fields - 1, 1, -2 do
  local field, value = fields[at], fields[at + 1]
  if is_owner_field(field, value) then
    oldest = value == '0' and field or oldest
  elseif field ~= holder then
    return redis.error_reply('WRONGTYPE the hash is no lock')
  end
end
redis.call('hdel', lock, oldest)
if redis.call('hincrby', lock, holder, -1) > 0 then
  return 0
end
redis.call('del', lock)
return redis.call('publish', channel, message)
