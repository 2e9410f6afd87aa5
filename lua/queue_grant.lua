-- Grants a queue lock to its best waiter. This text precedes that of each other `queue_` script.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: a lock that becomes free must have its next holder before another client can take it.

-- The number of commands that this run may still spend on dead waiters, each 1 to 2 us.
local work = 6000

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

-- The server's time exceeds every earlier token if the counter was lost.
local function next_token(lock)
  return math.max((last_token(lock) or 0) + 1, micros)
end

local function hand_out(lock, token)
  redis.call('set', lock.counter, digits(token))
  return token
end

-- Returns the token of the present hold, or a larger one if the counter was lost.
local function token_of_hold(lock)
  return last_token(lock) or hand_out(lock, micros)
end

-- Makes the owner the holder, and returns its token.
local function take(lock, owner, lease)
  local token = next_token(lock)
  redis.call('hset', lock.hash, owner, 1)
  redis.call('pexpire', lock.hash, lease)
  return hand_out(lock, token)
end

-- Returns the grant lease and the mode of a live client. Forgets a client that is gone.
local function terms_of(lock, client)
  local terms = redis.call('hget', lock.clients, client)
  local gone_at, grant_lease, mode = string.match(terms or '', '^(%d+) (%d+) (%a+) ')
  if gone_at and tonumber(gone_at) > millis then
    return grant_lease, mode
  end
  if terms then
    redis.call('hdel', lock.clients, client)
  end
end

-- Counts the client as alive for one grant lease, and stores its terms: the ms at which it counts
-- as gone, the grant lease, `single` or `cluster`, and the us since which it has terms. Returns the
-- last of these. (A flag for new terms would be lost with one reply.) Terms with more than `enough`
-- ms left stay as they are. The terms expire after all clients are gone.
local function keep_alive(lock, client, grant_lease, mode, enough)
  local old = redis.call('hget', lock.clients, client)
  local gone_at, since = string.match(old or '', '^(%d+) .* (%d+)$')
  if gone_at and tonumber(gone_at) - millis > enough then
    return tonumber(since)
  end
  since = since or digits(micros)
  local terms = { digits(millis + grant_lease), grant_lease, mode, since }
  redis.call('hset', lock.clients, client, table.concat(terms, ' '))
  if redis.call('pttl', lock.clients) < grant_lease then
    redis.call('pexpire', lock.clients, 2 * grant_lease)
  end
  if not old then
    -- Each new client looks at two others, so that clients that are gone do not add up.
    for _, other in ipairs(redis.call('hrandfield', lock.clients, 2)) do
      terms_of(lock, other)
    end
  end
  return tonumber(since)
end

-- Forgets all clients. A key of another type stays.
local function forget_clients(lock)
  local number = redis.pcall('hlen', lock.clients)
  if type(number) == 'number' and number > 0 then
    redis.call('del', lock.clients)
  end
end

-- Keeps the queue for an hour. Returns whether there is one.
local function keep_queue(lock)
  return redis.call('pexpire', lock.queue, 3600000) == 1
end

-- Makes the waiter the holder for its grant lease, and tells its client. Returns the token, or
-- nothing if the client does not listen. In a cluster the server cannot tell. PUBLISH comes last:
-- if the server refuses it, the next heartbeat of the client finds the hold.
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
-- nothing if there is no such waiter or if the lock is held. The caller takes the lock with its own
-- lease, without a message.
local function grant_to_best(lock, caller, lease)
  -- While the slot migrates, this call fails before a waiter is lost.
  if redis.call('exists', lock.hash) == 1 then
    return
  end
  local gone = {}
  while work > 0 do
    local best = redis.call('zpopmin', lock.queue)[1]
    if not best then
      forget_clients(lock)
      return
    end
    if best == caller then
      return best, take(lock, best, lease)
    end
    local client = client_of(best)
    local grant_lease, mode
    if not gone[client] then
      grant_lease, mode = terms_of(lock, client)
      work = work - 1
    end
    if grant_lease then
      local token = grant(lock, best, grant_lease, mode)
      if token then
        return best, token
      end
      -- If the client lives, its next heartbeat gives it new terms, and reports them.
      redis.call('hdel', lock.clients, client)
      work = work - 7
    end
    gone[client] = true
    work = work - 1
  end
end

-- Ends the owner's hold or wait, and grants a free lock to the best waiter. Returns whether the
-- owner held the lock, and whether a waiter holds it now.
local function finish(lock, owner)
  if redis.call('hdel', lock.hash, owner) == 1 then
    return true, grant_to_best(lock) ~= nil
  end
  redis.call('zrem', lock.queue, owner)
  local is_granted = grant_to_best(lock) ~= nil
  if redis.call('exists', lock.queue) == 0 then
    -- The last caller that leaves a held lock deletes the terms of the clients.
    forget_clients(lock)
  end
  return false, is_granted
end
