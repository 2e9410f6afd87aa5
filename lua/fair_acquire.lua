-- Takes a lock that is free and has nobody waiting before this hold, or has it wait in the queue.
-- KEYS: 1 the lock's hash, 2 the queue of those who wait, 3 when each of them is taken for dead
-- ARGV: 1 lease in ms, 2 owner, 3 ms after which it is taken for dead once it is the first and silent; 0 if it does not wait, 4 ms for which another that is first may leave a free lock alone, 5 and 6, only from a caller that will wait: wake channel of its client, and what to publish there if refused
-- RETURNS: -2 acquired; -1 held without a time to live; else ms that the holder has left, or who is first in the queue
-- Atomic: nobody may overtake between the look and the write.
local lock, queue, deaths, lease, owner, patience, fair_waiter_timeout, wake, wanted = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function death_of(waiter)
  return waiter and tonumber(redis.call('zscore', deaths, waiter))
end

local left = redis.call('pttl', lock)
if redis.call('hexists', lock, owner) == 1 then
  if left < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  return -2
end
-- Who is first and dead leaves the queue.
local head = redis.call('lindex', queue, 0)
while head and (death_of(head) or 0) <= now do
  redis.call('lpop', queue)
  redis.call('zrem', deaths, head)
  head = redis.call('lindex', queue, 0)
end
if left == -2 and (not head or head == owner) then
  if head then
    redis.call('lpop', queue)
    redis.call('zrem', deaths, owner)
    -- Each of the others has one less before it; none is given less time than from now on.
    local waiting = redis.call('zrange', deaths, 0, -1, 'withscores')
    for at = 1, #waiting, 2 do
      local death = tonumber(waiting[at + 1])
      local sooner = math.max(death - patience, now + patience)
      if sooner < death then
        redis.call('zadd', deaths, sooner, waiting[at])
      end
    end
  end
  redis.call('hset', lock, owner, 1)
  redis.call('pexpire', lock, lease)
  return -2
end
if patience > 0 then
  local mine = death_of(owner)
  if not mine or mine - now < patience / 2 then
    -- It comes after whoever stands before it: the last, or its neighbour.
    local before = redis.call('lindex', queue, -1)
    if mine then
      local place = redis.call('lpos', queue, owner)
      before = place and place > 0 and redis.call('lindex', queue, place - 1)
    else
      redis.call('rpush', queue, owner)
      head = head or owner
    end
    mine = math.max(mine or 0, (death_of(before) or now + math.max(left, 0)) + patience)
    redis.call('zadd', deaths, mine, owner)
    -- Redisson's keys have no end; these have one, an hour after all are dead.
    local latest = redis.call('zrange', deaths, -1, -1, 'withscores')
    local keep = latest[2] - now + 3600000
    redis.call('pexpire', queue, keep)
    redis.call('pexpire', deaths, keep)
  end
  -- When it came the lock may have been held for long to come; it is free now. After its own place:
  -- Redisson will subtract from that what Redisson's waiters had added.
  if left == -2 and now + fair_waiter_timeout < death_of(head) then
    redis.call('zadd', deaths, now + fair_waiter_timeout, head)
  end
  if wake then
    redis.call('publish', wake, wanted)
  end
end
if head == owner or left == -1 or not head then
  return left
end
return math.max(left, death_of(head) - now)
