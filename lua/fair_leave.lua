-- Removes a hold from the queue, or ends it; notifies the head of the queue if the lock is free.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiters' timeouts, a sorted set
-- ARGV: 1 owner, 2 the prefix of the waiters' channels, 3 message, 4 ms of silence at the head of
--   the queue after which others would have removed this waiter
-- RETURNS: -1 neither held nor queued; 0 no waiter to notify; else the number of subscribers that
--   received the message
-- Atomic: a message that this hold may have received must pass to the next waiter, and no other
--   waiter may come between.
local lock, queue, timeouts, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local channel, message, patience = ARGV[2], ARGV[3], tonumber(ARGV[4])

local held = redis.call('hdel', lock, owner) == 1
local place = redis.call('lpos', queue, owner)
local waited = redis.call('zrem', timeouts, owner) == 1 or place
if waited then
  redis.call('lrem', queue, 0, owner)
  -- Each waiter behind has one waiter less ahead. Its timeout becomes earlier, but leaves at least
  -- the full patience from now.
  for _, waiter in ipairs(place and redis.call('lrange', queue, place, -1) or {}) do
    local timeout = tonumber(redis.call('zscore', timeouts, waiter)) or 0
    local earlier = math.max(timeout - patience, now + patience)
    if earlier < timeout then
      redis.call('zadd', timeouts, earlier, waiter)
    end
  end
end
if not held and not waited then
  return -1
end
local head = head_of(queue, timeouts)
if head and redis.call('exists', lock) == 0 then
  return redis.call('publish', channel .. head, message)
end
return 0
