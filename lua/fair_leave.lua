-- Takes a hold out of the queue, or ends it if it has the lock; whoever is first then is told if the lock is free.
-- KEYS: 1 the lock's hash, 2 the queue of those who wait, 3 when each of them is taken for dead
-- ARGV: 1 owner, 2 what stands before a waiter's name in its channel, 3 message, 4 ms after which it was taken for dead
-- RETURNS: -1 it neither held nor waited; 0 nobody had to be told; else how many subscribers were told
-- Atomic: the message that this hold may have had must go to the next, and nobody may come between.
local lock, queue, deaths, owner, channel, message, patience = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local held = redis.call('hdel', lock, owner) == 1
local place = redis.call('lpos', queue, owner)
local waited = redis.call('zrem', deaths, owner) == 1 or place
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if waited then
  redis.call('lrem', queue, 0, owner)
  -- Those behind it have one less before them; none is given less time than from now on.
  for _, waiter in ipairs(place and redis.call('lrange', queue, place, -1) or {}) do
    local death = tonumber(redis.call('zscore', deaths, waiter)) or 0
    local sooner = math.max(death - patience, now + patience)
    if sooner < death then
      redis.call('zadd', deaths, sooner, waiter)
    end
  end
end
if not held and not waited then
  return -1
end
local head = redis.call('lindex', queue, 0)
while head and (tonumber(redis.call('zscore', deaths, head)) or 0) <= now do
  redis.call('lpop', queue)
  redis.call('zrem', deaths, head)
  head = redis.call('lindex', queue, 0)
end
if head and redis.call('exists', lock) == 0 then
  return redis.call('publish', channel .. head, message)
end
return 0
