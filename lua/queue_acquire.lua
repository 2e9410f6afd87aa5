-- Takes a free lock if no live waiter is better; otherwise queues a caller that waits.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token
-- ARGV: 1 lease in ms, 2 owner, 3 and 4, only from a caller that waits: the grant lease in ms, and
--   `single` or `cluster`, 5 and 6, from the same caller: the microseconds by which its weight
--   moves it forward, and its place as an earlier reply reported it, or nothing
-- RETURNS: 1 -2 acquired; -1 held without expiry; else the holder's remaining lease in ms, or 0 if
--   too many dead waiters precede; 2 the token of the hold; if refused, a number that is at least
--   each token handed out so far and less than each later one; 3 the caller's place in the queue,
--   or 0; 4 the time in us since which the client has its terms: if it changes, waiters of the
--   client may have lost their places; 0 without a place
-- Atomic: no other caller may take the lock or a better place between the check and the write.
local hash, queue, clients, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, owner, grant_lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local mode, advance, place = ARGV[4], ARGV[5], ARGV[6]

local lock = lock_of(hash, queue, clients, counter)
local ttl = redis.call('pttl', lock.hash)
if ttl == -2 and redis.call('exists', lock.queue) == 0 then
  return { -2, take(lock, owner, lease), 0, 0 }
end
if ttl ~= -2 and redis.call('hexists', lock.hash, owner) == 1 then
  if ttl < tonumber(lease) then
    redis.call('pexpire', lock.hash, lease)
  end
  return { -2, token_of_hold(lock), 0, 0 }
end
local since = 0
if mode then
  -- LT: a late copy without a place does not make the place worse.
  local own = tonumber(place) or micros - advance
  if redis.call('zadd', lock.queue, 'LT', digits(own), owner) == 0 then
    own = redis.call('zscore', lock.queue, owner)
  end
  place = tonumber(own)
  keep_queue(lock)
  since = keep_alive(lock, client_of(owner), grant_lease, mode, grant_lease / 2)
end
if ttl == -2 then
  local best, token = grant_to_best(lock, owner, lease)
  if not best and redis.call('exists', lock.queue) == 0 then
    best, token = owner, take(lock, owner, lease)
  end
  if best == owner then
    return { -2, token, 0, 0 }
  end
  ttl = redis.call('pttl', lock.hash)
end
local left = ttl == -2 and 0 or ttl
return { left, math.max(last_token(lock) or 0, micros - 1), place or 0, since }
