-- Writes the result of work and ends the hold, if the caller still has the hold.
-- KEYS: 1 the lock's hash, 2 the result, a hash
-- ARGV: 1 owner, 2 channel, 3 message, 4 ms for which the result is kept, 5 the token of the hold,
--   6 the value
-- RETURNS: -1 not held, and this hold has written no result; else a list: 1 the number of
--   subscribers that received the message, or 0 if it was refused, -1 from a repeated call, 2 the
--   time of the result in ms since 1970
-- Atomic: only the holder may write the result, and the hold must end with it.
local lock, result, owner, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local message, keep, token, value = ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- A key of another type is an error before the first write. A server with full memory refuses HSET
-- as the first write of a script, so HDEL comes first.
local done = redis.call('hmget', result, 'owner', 'at')
local time = redis.call('time')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('hdel', lock, owner) == 0 then
  if done[1] ~= owner then
    return -1
  end
  -- WAIT counts the replicas that have the last write of this connection, so there has to be one.
  redis.call('hset', result, 'owner', owner)
  return { -1, tonumber(done[2]) }
end
local written = string.format('%.0f', at)
redis.call('hset', result, 'owner', owner, 'token', token, 'value', value, 'at', written)
redis.call('pexpire', result, keep)
-- Without the permission to publish the result is written too. Waiters find it by their polls.
local is_sent, heard = pcall(function()
  return redis.call('publish', channel, message)
end)
return { is_sent and heard or 0, at }
