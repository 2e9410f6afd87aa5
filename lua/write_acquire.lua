-- Takes a free read-write lock for writing unless others are next, or restores this hold's lease.
-- KEYS: 1 the lock's hash, 2 the turns of waiting callers
-- ARGV: 1 lease in ms, 2 owner, 3 ms for which others know that this writer waits (0: it does
--   not), or an empty string to ignore the turns, 4 and 5, only from a caller that will wait: the
--   client's wake channel, and the lock's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the ms after which to ask again: the holders'
--   remaining lease, or the rest of the turn of others
-- Atomic: no other client may take the lock between the check and the write.
local lock, turns, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local waits, wake, channel = tonumber(ARGV[3]), ARGV[4], ARGV[5]

local ttl = redis.call('pttl', lock)
if ttl ~= -2 and redis.call('hexists', lock, owner) == 1 then
  if ttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
  return -2
end
local client = client_of(owner)
local next, turn = false, false
if waits then
  next, turn = unpack(redis.call('hmget', turns, 'writer', 'turn'))
end
local is_free, is_announced = ttl == -2, false
local now = (next or turn or not is_free) and millis(redis.call('time'))
local writer, left_for_writer = read_entry(next, now)
local before, left_for_readers = read_entry(turn, now)
if is_free and not left_for_readers and (not writer or writer == client) then
  if next or turn then
    redis.call('hdel', turns, 'writer', 'turn')
  end
  redis.call('hset', lock, 'mode', 'write', owner, 1)
  redis.call('pexpire', lock, lease)
  return -2
end
-- The client whose writer was the last leaves the next turn to another one while the readers have
-- theirs, and announces itself afterwards.
if waits and waits > 0 and before ~= client and (not writer or writer == client) then
  announce(turns, 'writer', waits, now, client)
  is_announced = true
end
if not is_free then
  ask_holder(lock, owner)
end
if wake then
  redis.call('publish', wake, channel)
end
if left_for_readers and (is_free or not is_announced) then
  return left_for_readers
end
return is_free and left_for_writer or ttl
