-- Takes a lock that is free or has this holder, and counts the hold; a repeated call counts once.
-- KEYS: 1 the lock's hash
-- ARGV: 1 lease in ms, 2 holder, 3 hold, 4 and 5, only from a caller that will wait: the client's
--   wake channel, and the lock's channel, which is published there on a refusal
-- RETURNS: -2 acquired; -1 held without expiry; else the holder's remaining lease in ms
-- Atomic: no other client may take the lock between the check and the write, and a repeated call
--   must not count twice.
local lock, lease, holder, hold, wake, channel =
  KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local ttl = redis.call('pttl', lock)
local counted = ttl ~= -2 and redis.call('hexists', lock, hold) == 1
if ttl ~= -2 and not counted then
  -- A field with the value 0 is a hold and no holder. The fields of a read-write lock are no
  -- holders either. Nor are those of another program's hash: of any two fields of a lock, one is an
  -- owner field.
  local count = tonumber(redis.call('hget', lock, holder)) or 0
  local mode = redis.call('hget', lock, 'mode')
  local first, second = unpack(redis.call('hrandfield', lock, 2))
  local is_foreign =
    second and not is_owner_field(first, '1') and not is_owner_field(second, '1')
  if count < 1 or mode == 'read' or mode == 'write' or is_foreign then
    if wake then
      redis.call('publish', wake, channel)
    end
    return ttl
  end
end
if not counted then
  redis.call('hincrby', lock, holder, 1)
  redis.call('hset', lock, hold, 0)
end
if ttl < tonumber(lease) then
  redis.call('pexpire', lock, lease)
end
return -2
