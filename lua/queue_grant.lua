-- Grants a queue lock to its best waiter. This text precedes that of each other `queue_` script.
-- KEYS: 4 per lock: the lock's hash; the queue, a sorted set of owner fields with the best waiter
--   first; the live clients, a sorted set with the ms at which each counts as gone; the last fencing
--   token
-- ARGV: 1 the grant lease in ms, the lease of a waiter that is granted the lock; 2 `cluster`, in
--   which the server cannot tell whether a client listens; else `single`
-- RETURNS: -
-- Atomic: a lock that becomes free must have its next holder before another client can take it.
local grant_lease, is_cluster = ARGV[1], ARGV[2] == 'cluster'

-- The largest number of dead waiters that one run removes from a queue.
local max_dead = 10000

local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local millis = math.floor(micros / 1000)

local function lock_at(first)
  return {
    hash = KEYS[first], queue = KEYS[first + 1], alive = KEYS[first + 2], counter = KEYS[first + 3],
  }
end

local function client_of(owner)
  return string.sub(owner, 1, 36)
end

local function last_token(lock)
  return tonumber(redis.call('get', lock.counter))
end

-- Lua would write a large number as 1.79e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- Makes the owner the holder, and returns its token. The server's time exceeds every earlier token
-- if the counter was lost.
local function take(lock, owner, lease)
  local token = math.max((last_token(lock) or 0) + 1, micros)
  redis.call('set', lock.counter, digits(token))
  redis.call('hset', lock.hash, owner, 1)
  redis.call('pexpire', lock.hash, lease)
  return token
end

-- Tells the waiter's client that it holds the lock. Returns whether the client is not gone.
local function announce(lock, owner, client, token)
  local grant = { 'granted', string.sub(owner, 38), digits(token), grant_lease, lock.hash }
  local wake = 'leasehold:wake:{' .. client .. '}'
  return redis.call('publish', wake, table.concat(grant, ' ')) > 0 or is_cluster
end

-- Gives a free lock to the best waiter of a live client. Returns its owner field and token, or
-- nothing if no such waiter was found. The caller takes the lock without a message.
local function grant_to_best(lock, caller, lease)
  for _ = 1, max_dead do
    local best = redis.call('zpopmin', lock.queue)[1]
    if not best or best == caller then
      return best, best and take(lock, best, lease)
    end
    local client = client_of(best)
    if (tonumber(redis.call('zscore', lock.alive, client)) or 0) > millis then
      local token = take(lock, best, grant_lease)
      if announce(lock, best, client, token) then
        return best, token
      end
      redis.call('hdel', lock.hash, best)
    end
    -- A client that is not gone finds at its next heartbeat that it may have lost places.
    redis.call('zrem', lock.alive, client)
  end
end
