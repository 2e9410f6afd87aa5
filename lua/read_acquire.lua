-- Takes a read-write lock for reading unless another owner writes, or restores the full lease.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold
-- ARGV: 1 lease in ms, 2 owner, 3 the owner of the write hold under which this hold may read, or an
--   empty string, 4 and 5, only from a caller that will wait: the client's wake channel, and the
--   lock's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the holder's remaining lease in ms
-- Atomic: no other client may take the lock for writing between the check and the write.
local lock, timeout_key, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local writer, wake, channel = ARGV[3], ARGV[4], ARGV[5]

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

local ttl = redis.call('pttl', lock)
if ttl == -2 then
  redis.call('hset', lock, 'mode', 'read')
elseif not is_shared() then
  if wake then
    redis.call('publish', wake, channel)
  end
  return ttl
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
