-- Takes a free lock if no other waiter is ahead; otherwise queues this hold, if the caller waits.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiters' timeouts, a sorted set
-- ARGV: 1 lease in ms, 2 owner, 3 ms of silence at the head of the queue after which others remove
--   this waiter; 0 if the caller does not wait, 4 ms for which another waiter at the head of the
--   queue may leave a free lock untaken, 5 and 6, only from a caller that will wait: the client's
--   wake channel, and the waiter's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the ms to wait: the holder's remaining lease,
--   or the time until the head of the queue times out if that is longer
-- Atomic: no other waiter may overtake between the check and the write.
local lock, queue, timeouts, lease, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local patience, fair_waiter_timeout, wake, channel =
  tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]

local function timeout_of(waiter)
  return waiter and tonumber(redis.call('zscore', timeouts, waiter))
end

local ttl = redis.call('pttl', lock)
if redis.call('hexists', lock, owner) == 1 then
  if ttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  return -2
end
local head = head_of(queue, timeouts)
if ttl == -2 and (not head or head == owner) then
  if head then
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, owner)
    -- Each remaining waiter has one waiter less ahead. Its timeout becomes earlier, but leaves at
    -- least the full patience from now.
    local waiting = redis.call('zrange', timeouts, 0, -1, 'withscores')
    for at = 1, #waiting, 2 do
      local timeout = tonumber(waiting[at + 1])
      local earlier = math.max(timeout - patience, now + patience)
      if earlier < timeout then
        redis.call('zadd', timeouts, earlier, waiting[at])
      end
    end
  end
  redis.call('hset', lock, owner, 1)
  redis.call('pexpire', lock, lease)
  return -2
end
if patience > 0 then
  local own_timeout = timeout_of(owner)
  if not own_timeout or own_timeout - now < patience / 2 then
    -- The new timeout follows that of the waiter directly ahead.
    local ahead = redis.call('lindex', queue, -1)
    if own_timeout then
      local place = redis.call('lpos', queue, owner)
      ahead = place and place > 0 and redis.call('lindex', queue, place - 1)
    else
      redis.call('rpush', queue, owner)
      head = head or owner
    end
    local after_ahead = (timeout_of(ahead) or now + math.max(ttl, 0)) + patience
    redis.call('zadd', timeouts, math.max(own_timeout or 0, after_ahead), owner)
    -- Redisson's queue keys never expire. These expire an hour after the last timeout.
    local latest = redis.call('zrange', timeouts, -1, -1, 'withscores')
    local keep = latest[2] - now + 3600000
    redis.call('pexpire', queue, keep)
    redis.call('pexpire', timeouts, keep)
  end
  -- The timeout of the head may include a long lease. The lock is free now, so the timeout becomes
  -- earlier. This waiter's own timeout was computed before, from the longer timeout of the head: a
  -- waiter of Redisson at the head later subtracts its full share from the timeouts behind it.
  if ttl == -2 and now + fair_waiter_timeout < timeout_of(head) then
    redis.call('zadd', timeouts, now + fair_waiter_timeout, head)
  end
  if wake then
    redis.call('publish', wake, channel)
  end
end
if head == owner or ttl == -1 or not head then
  return ttl
end
return math.max(ttl, timeout_of(head) - now)
