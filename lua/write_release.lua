-- Ends a write hold, announces it, and gives waiting readers their turn. Own read holds remain.
-- KEYS: 1 the lock's hash, 2 the turns of waiting callers
-- ARGV: 1 owner, 2 channel, 3 message, 4 the prefix of the readers' time-out keys, 5 and 6, only
--   before the minimum of the hold: the minimum-hold field, and ms until the end of the minimum
-- RETURNS: -1 not held by this owner; else the number of subscribers that received the message
-- Atomic: only the owner may free the lock, and the message must follow the release.
local lock, turns, owner, channel, message = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local prefix, nobody, left = ARGV[4], ARGV[5], ARGV[6]
local client = client_of(owner)

local next, waiting = unpack(redis.call('hmget', turns, 'writer', 'readers'))
local now = (next or waiting) and millis(redis.call('time'))
if redis.call('hexists', lock, owner) == 0 then
  -- A writer that waits no more. Readers may wait for its turn.
  if next and read_entry(next, now) == client then
    redis.call('del', turns)
    redis.call('publish', channel, message)
  end
  return -1
end
-- The lock keeps the longest lease of the remaining readers. All reads precede the first write:
-- while the slot migrates, a time-out key may already be on the other server, which fails the read.
local longest, readers = 0, redis.call('hgetall', lock)
for at = 1, #readers, 2 do
  for count = 1, readers[at] ~= owner and tonumber(readers[at + 1]) or 0 do
    local ttl = redis.call('pttl', prefix .. readers[at] .. ':rwlock_timeout:' .. count)
    longest = math.max(longest, ttl)
  end
end
-- Without readers the lock stays taken for writing, without a holder, until the minimum ends.
if left and longest == 0 then
  -- With full memory a server refuses HSET as the first write of a script, so PEXPIRE comes first.
  redis.call('pexpire', lock, left)
  redis.call('hset', lock, nobody, 1)
  redis.call('hdel', lock, owner)
  return redis.call('publish', channel, message)
end
local turn = waiting and read_entry(waiting, now)
if turn then
  redis.call('hdel', turns, 'readers')
  announce(turns, 'turn', turn, now, client)
end
redis.call('hdel', lock, owner, 'mode')
if longest > 0 then
  redis.call('hset', lock, 'mode', 'read')
  redis.call('pexpire', lock, longest)
elseif is_lock(readers) then
  redis.call('del', lock)
end
return redis.call('publish', channel, message)
