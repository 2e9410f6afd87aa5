-- Keeps the places of a client's waiters, grants free locks, and repeats grants to this client.
-- KEYS: n times 4, per lock: the lock's hash, the queue, the waiting clients, the last token
-- ARGV: 1 client id, 2 its grant lease in ms, 3 `single` or `cluster`
-- RETURNS: 5 numbers per lock: the time in us since which the client has its terms, or 0 if nobody
--   waits: if it changes, its waiters may have lost their places; the holder's remaining lease
--   in ms, -2 free, -1 held without expiry; the hold number if this client holds the lock, else 0;
--   the token of that hold, else 0; and a number that is at least each token handed out so far and
--   less than each later one; 0, -1, 0, 0 and 0 for a lock with a key of another type
-- Atomic: the reply must describe one moment, and no caller may come before the best waiter.
local client, grant_lease, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Returns the hold number if this client holds the lock. Such a lock has no second owner.
local function hold_of(lock)
  local holder, second = unpack(redis.call('hrandfield', lock.hash, 2))
  if holder and not second and client_of(holder) == client then
    return tonumber(string.sub(holder, 38))
  end
end

local function beat(lock)
  -- A server with full memory refuses HSET as the first write, and accepts PEXPIRE.
  local since = keep_queue(lock) and keep_alive(lock, client, grant_lease, mode, grant_lease) or 0
  local ttl = redis.call('pttl', lock.hash)
  if ttl == -2 and grant_to_best(lock) then
    ttl = redis.call('pttl', lock.hash)
  end
  local hold = ttl ~= -2 and hold_of(lock)
  local token = hold and token_of_hold(lock) or 0
  local bound = math.max(last_token(lock) or 0, micros - 1)
  return { since, ttl, hold or 0, token, bound }
end

local replies = {}
for first = 1, #KEYS, 4 do
  -- A key of another type must not prevent the heartbeats of other locks. An acquire finds it too.
  local is_done, reply = pcall(beat, lock_of(unpack(KEYS, first, first + 3)))
  if not is_done and not string.find(reply.err or reply, 'WRONGTYPE') then
    return reply.err and reply or { err = reply }
  end
  for _, number in ipairs(is_done and reply or { 0, -1, 0, 0, 0 }) do
    replies[#replies + 1] = number
  end
end
return replies
