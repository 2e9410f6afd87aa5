-- Keeps the places of a client's waiters, grants free locks, and repeats grants to this client.
-- KEYS: n times 4, per lock: the lock's hash, the queue, the waiting clients, the last token
-- ARGV: 1 client id, 2 its grant lease in ms, 3 `single` or `cluster`
-- RETURNS: 5 numbers per lock: the time in us since which the client has its terms, or 0 if nobody
--   waits: if it changes, its waiters may have lost their places; the holder's remaining lease
--   in ms, -2 free, -1 held without expiry; the hold number if this client holds the lock, else 0;
--   the token of that hold, else 0; and a number that is at least each token handed out so far and
--   less than each later one; 0, -1, 0, 0 and 0 for a lock with a key of another type
-- Atomic: the reply must describe one moment, and no caller may come before the best waiter.
local client, grant_lease, mode = ARGV[1], ARGV[2], ARGV[3]

local function hold_of(lock)
  local holder = redis.call('hlen', lock.hash) == 1 and redis.call('hkeys', lock.hash)[1]
  return holder and client_of(holder) == client and tonumber(string.sub(holder, 38))
end

local function beat(lock)
  local is_awaited = redis.call('exists', lock.queue) == 1
  local since = is_awaited and keep_alive(lock, client, grant_lease, mode) or 0
  grant_to_best(lock)
  local hold = hold_of(lock)
  local token = hold and token_of_hold(lock) or 0
  local bound = math.max(last_token(lock) or 0, micros - 1)
  return { since, redis.call('pttl', lock.hash), hold or 0, token, bound }
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
