-- Keeps the places of a client's waiters, grants free locks, and repeats grants to this client.
-- KEYS: 4 per lock: the lock's hash, the queue, the live clients, the last fencing token
-- ARGV: 1 and 2 as in `queue_grant`, 3 client id, 4 ms without a heartbeat after which the client
--   counts as gone
-- RETURNS: 5 numbers per lock: 1 if the client may have lost places, else 0; the holder's remaining
--   lease in ms, -2 free, -1 held without expiry; the hold number if this client holds the lock,
--   else 0; the token of that hold, else 0; and a number that is at least each token handed out so
--   far and less than each later one
-- Atomic: the reply must describe one moment, and no caller may come before the best waiter.
local client, lifetime = ARGV[3], ARGV[4]

local function own_hold(lock)
  local holder = redis.call('hlen', lock.hash) == 1 and redis.call('hkeys', lock.hash)[1]
  return holder and client_of(holder) == client and tonumber(string.sub(holder, 38))
end

local replies = {}
for first = 1, #KEYS, 4 do
  local lock = lock_at(first)
  -- With full memory a server refuses ZADD as the first write of a script.
  redis.call('pexpire', lock.queue, 3600000)
  local is_new = redis.call('zadd', lock.alive, millis + lifetime, client)
  redis.call('pexpire', lock.alive, 3600000)
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
