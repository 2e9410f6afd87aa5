-- Grants a queue lock to its best waiter. This text precedes that of each other `queue_` script.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: a lock that becomes free must have its next holder before another client can take it.

-- The largest number of dead waiters that one run removes from a queue.
local max_dead = 10000

local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local millis = math.floor(micros / 1000)

-- Names the keys of a lock: its hash; the queue, a sorted set of owner fields with the best waiter
-- first; the waiting clients, a hash with the terms of each; the last fencing token.
local function lock_of(hash, queue, clients, counter)
  return { hash = hash, queue = queue, clients = clients, counter = counter }
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

-- Counts the client as alive for one grant lease, and stores its terms: the ms at which it counts
-- as gone, the grant lease, and `single` or `cluster`. Returns 1 if the client had no terms, else
-- 0. Without a heartbeat for an hour all waiters are gone. With full memory a server refuses HSET
-- as the first write of a script, so PEXPIRE comes first.
local function keep_alive(lock, client, grant_lease, mode)
  redis.call('pexpire', lock.queue, 3600000)
  local terms = { digits(millis + grant_lease), grant_lease, mode }
  local is_new = redis.call('hset', lock.clients, client, table.concat(terms, ' '))
  redis.call('pexpire', lock.clients, 3600000)
  return is_new
end

-- Makes the waiter the holder for its grant lease, and tells its client. Returns the token, or
-- nothing if the client does not listen. In a cluster the server cannot tell.
local function grant(lock, owner, grant_lease, mode)
  local token = take(lock, owner, grant_lease)
  local message = { 'granted', string.sub(owner, 38), digits(token), grant_lease, lock.hash }
  local wake = 'leasehold:wake:{' .. client_of(owner) .. '}'
  if redis.call('publish', wake, table.concat(message, ' ')) > 0 or mode == 'cluster' then
    return token
  end
  redis.call('hdel', lock.hash, owner)
end

-- Grants a free lock to the best waiter of a live client. Returns its owner field and its token, or
-- nothing if there is no such waiter. The caller takes the lock with its own lease, without a
-- message.
local function grant_to_best(lock, caller, lease)
  for _ = 1, max_dead do
    local best = redis.call('zpopmin', lock.queue)[1]
    if not best or best == caller then
      return best, best and take(lock, best, lease)
    end
    local terms = redis.call('hget', lock.clients, client_of(best))
    local gone_at, grant_lease, mode = string.match(terms or '', '^(%d+) (%d+) (%a+)$')
    local token = gone_at and tonumber(gone_at) > millis and grant(lock, best, grant_lease, mode)
    if token then
      return best, token
    end
    -- If the client lives, it learns from its next heartbeat that it may have lost places.
    redis.call('hdel', lock.clients, client_of(best))
  end
end
