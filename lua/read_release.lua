-- Ends a read hold; the last one frees the lock and announces it.
-- KEYS: 1 the lock's hash, 2 the time-out key of this hold
-- ARGV: 1 owner, 2 channel, 3 message, 4 the prefix of the readers' time-out keys
-- RETURNS: -1 not held by this owner; 0 released while other holds remain; else the number of
--   subscribers that received the message
-- Atomic: the lock must become free with the end of the last hold, and not before.
local lock, timeout_key, owner, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local message, prefix = ARGV[3], ARGV[4]

-- The number of fields that a release reads if there are more.
local some = 32

-- Returns the longest lease of the other readers among these fields, and those without a lease.
local function longest_of(fields)
  local longest, expired = 0, {}
  for at = 1, #fields, 2 do
    local reader, count, lease = fields[at], tonumber(fields[at + 1]) or 0, 0
    if reader ~= owner and reader ~= 'mode' then
      for number = 1, count do
        local left = redis.call('pttl', prefix .. reader .. ':rwlock_timeout:' .. number)
        lease = math.max(lease, left)
      end
      longest = math.max(longest, lease)
      if lease == 0 and is_owner_field(reader, fields[at + 1]) then
        expired[#expired + 1] = reader
      end
    end
  end
  return longest, expired
end

-- Ends the hold. GETDEL leaves a key of another type.
local function leave()
  redis.call('hdel', lock, owner)
  redis.pcall('getdel', timeout_key)
end

if redis.call('hexists', lock, owner) == 0 then
  return -1
end
-- In write mode the writer's lease determines the expiry.
if redis.call('hget', lock, 'mode') ~= 'read' then
  leave()
  return 0
end
-- All reads precede the first write: while the slot migrates, a time-out key may already be on the
-- other server, which fails the read.
local are_many = redis.call('hlen', lock) > some
-- The lock keeps its expiry if another hold determines it, or if it is at most twice as far away as
-- the longest lease among some readers. Else a release would read each reader.
if are_many then
  local left, own = redis.call('pttl', lock), redis.call('pttl', timeout_key)
  local longest = longest_of(redis.call('hrandfield', lock, some, 'withvalues'))
  if left > 0 and longest > 0 and (own < left or 2 * longest >= left) then
    leave()
    return 0
  end
end
-- The lock keeps the longest lease of the remaining readers.
local fields = redis.call('hgetall', lock)
local longest, expired = longest_of(fields)
leave()
if longest > 0 then
  redis.call('pexpire', lock, longest)
  -- Else the next release would read them again.
  for _, reader in ipairs(are_many and expired or {}) do
    redis.call('hdel', lock, reader)
  end
  return 0
end
-- With the owner and the mode alone the hash is a lock.
if #fields == 4 or is_lock(fields) then
  redis.call('del', lock)
end
return redis.call('publish', channel, message)
