-- Takes a read-write lock for reading, or restores its lease, unless a writer has it or is next.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold, 3 the turns of waiting callers
-- ARGV: 1 lease in ms, 2 owner, 3 the owner of the write hold under which this hold may read, or an
--   empty string, 4 ms for which others know that this reader waits (0: it does not), or an empty
--   string to ignore the turns, 5 and 6, only from a caller that will wait: the client's wake
--   channel, and the lock's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the ms after which to ask again: the holder's
--   remaining lease, or the rest of the turn of others
-- Atomic: no other client may take the lock for writing between the check and the write.
local lock, timeout_key, turns, lease, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local writer, waits, wake, channel = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

-- Returns whether the lock is held for reading, or by the writer that also reads.
local function is_shared()
  local mode = redis.call('hget', lock, 'mode')
  if mode == 'read' then
    -- Of any two fields of a lock, one is an owner field. The hash of another program has none.
    local first, second = unpack(redis.call('hrandfield', lock, 2))
    return is_owner_field(first, '1') or is_owner_field(second or '', '1')
  end
  return mode == 'write' and redis.call('hexists', lock, writer) == 1
end

-- Returns the rest of the turn of a waiting writer. Holds of the caller itself have no turn.
local function left_for_writer()
  if not waits or writer ~= '' then
    return
  end
  local next, turn = unpack(redis.call('hmget', turns, 'writer', 'turn'))
  if not next or redis.call('hexists', lock, owner) == 1 then
    return
  end
  local now = millis(redis.call('time'))
  local _, left = read_entry(next, now)
  return not read_entry(turn, now) and left
end

local function refuse(left)
  if waits and waits > 0 then
    local turn = math.max(10, math.floor(waits / 100))
    announce(turns, 'readers', waits, millis(redis.call('time')), turn)
  end
  if wake then
    redis.call('publish', wake, channel)
  end
  return left
end

local ttl = redis.call('pttl', lock)
if ttl ~= -2 and not is_shared() then
  ask_holder(lock, owner)
  return refuse(ttl)
end
local left = left_for_writer()
if left then
  return refuse(left)
end
if ttl == -2 then
  redis.call('hset', lock, 'mode', 'read')
end
redis.call('hset', lock, owner, 1)
if redis.call('pttl', timeout_key) < tonumber(lease) then
  redis.call('set', timeout_key, 1, 'px', lease)
end
-- The lock must not expire before the longest lease of its holders.
if ttl < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return -2
