-- Keeps the places of a client's waiters, grants free locks, and repeats grants to this client.
-- KEYS: n times 4, per lock: the lock's hash, the queue, the waiting clients, the last token
-- ARGV: 1 client id, 2 its grant lease in ms, 3 `single` or `cluster`
-- RETURNS: 5 numbers per lock: 1 if the client may have lost places, else 0; the holder's remaining
--   lease in ms, -2 free, -1 held without expiry; the hold number if this client holds the lock,
--   else 0; the token of that hold, else 0; and a number that is at least each token handed out so
--   far and less than each later one
-- Atomic: the reply must describe one moment, and no caller may come before the best waiter.
local client, grant_lease, mode = ARGV[1], ARGV[2], ARGV[3]

local function own_hold(lock)
  local holder = redis.call('hlen', lock.hash) == 1 and redis.call('hkeys', lock.hash)[1]
  return holder and client_of(holder) == client and tonumber(string.sub(holder, 38))
end

local replies = {}
for first = 1, #KEYS, 4 do
  local lock = lock_of(unpack(KEYS, first, first + 3))
  local is_new = keep_alive(lock, client, grant_lease, mode)
  if redis.call('exists', lock.hash) == 0 then
    grant_to_best(lock)
  end
  local token = last_token(lock) or 0
  local hold = own_hold(lock)
  local bound = math.max(token, micros - 1)
  for _, number in ipairs({ is_new, redis.call('pttl', lock.hash), hold or 0,
    hold and token or 0, bound }) do
    replies[#replies + 1] = number
  end
end
return replies
