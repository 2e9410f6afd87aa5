-- Describes locks, and for a search elections and semaphores too.
-- KEYS: n the locks' hashes
-- ARGV: 1 `look`; `token`, which also reads the token counter; or `any`, `hash` or `permits`, which
--   leave out hashes without an owner field and also read the rest: `hash` of keys that are hashes,
--   `permits` of keys that are none, 2 .. the name of each lock with its hash tag
-- RETURNS: one list per lock, empty without a key: 1 the reply of PTTL, 2 the fields and values,
--   none for a key that is no hash or is left out, 3 for a read-write lock one number per field:
--   the ms left of the reader, -2 without a time-out key, -1 if that key has no expiry or cannot be
--   read, 4 except for `look`: the text of the token counter, empty if there is none, 5 and 6 for a
--   search: the queue of a fair lock, and the queue of a queue lock, 7 for a search: the owner and
--   the value of the record of a leader, or nothing, 8 for a search, if permits of a semaphore are
--   in use: the reply of `semaphore_info` with holders, and 1 is -2 without the key
-- Atomic: the parts of the description must be of one moment.

-- A server counts each command on a key of another type as an error, so `hash` and `permits` send
-- none.
local mode = ARGV[1]
local reads_token, searches = mode ~= 'look', mode ~= 'look' and mode ~= 'token'

-- Returns the reply, or nothing if the key has another type, or is on another node while its slot
-- moves. Other errors end the script.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  end
  local is_gone = string.find(reply.err, 'non local key', 1, true)
  if not is_gone and not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
end

-- Of any two fields of a lock, one is an owner field. A large hash of another program is not read.
local function has_owner(lock)
  for _, field in ipairs(read('hrandfield', lock, 2) or {}) do
    if string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%d') then
      return true
    end
  end
  return false
end

local function is_read_write(fields)
  for at = 1, #fields, 2 do
    if fields[at] == 'mode' and (fields[at + 1] == 'read' or fields[at + 1] == 'write') then
      return true
    end
  end
  return false
end

-- Redisson has a time-out key for each re-entry of a reader. The last keys live longest, so up to
-- 16 are read.
local function reader_leases(fields, name)
  local leases = {}
  for at = 1, is_read_write(fields) and #fields or 0, 2 do
    local left, last = -2, math.min(tonumber(fields[at + 1]) or 0, 1000000000)
    for number = math.max(1, last - 15), last do
      local key = name .. ':' .. fields[at] .. ':rwlock_timeout:' .. number
      left = math.max(left, read('pttl', key) or -1)
    end
    leases[#leases + 1] = left
  end
  return leases
end

-- Returns the description of a semaphore with permits in use, and nothing for any other key. The
-- semaphores `a` and `{a}` have the same key of expiries: without its number, it counts as that of
-- `a`, unless `{a}` has one. The user may have no permission for `{a}`.
local function used_permits(permits, tagged)
  local expiries = tagged .. ':timeout'
  local stored = read('get', permits)
  local is_other = string.find(permits, '^{[^{]*}$') or
    permits ~= tagged and type(redis.pcall('get', tagged)) == 'string'
  local is_number = stored == false and not is_other or stored and string.match(stored, number_form)
  if is_number and (read('zcard', expiries) or 0) > 0 then
    local description, in_use = describe_permits(stored, expiries, 0, true)
    description[6] = read_slots('leasehold_slots:' .. tagged)
    return in_use > 0 and description
  end
end

local infos = {}
for position, lock in ipairs(KEYS) do
  local name = ARGV[position + 1]
  local may_be_lock = not searches or mode ~= 'permits' and has_owner(lock)
  local fields = may_be_lock and read('hgetall', lock) or {}
  local ttl = redis.call('pttl', lock)
  local info = ttl ~= -2 and { ttl, fields, reader_leases(fields, name) } or {}
  if reads_token and #fields > 0 then
    info[4] = read('get', 'redisson_lock_token:' .. name) or ''
  end
  if searches and #fields > 0 then
    info[5] = read('lrange', 'redisson_lock_queue:' .. name, 0, -1) or {}
    info[6] = read('zrange', 'leasehold_queue:' .. name, 0, -1) or {}
    -- An election has tokens.
    local leader = info[4] ~= '' and read('hmget', 'leasehold_leader:' .. name, 'owner', 'value')
    info[7] = leader and leader[1] and { leader[1], leader[2] or '' } or {}
  end
  if searches and mode ~= 'hash' and #fields == 0 then
    local permits = used_permits(lock, name)
    info = permits and { ttl, {}, {}, '', {}, {}, {}, permits } or info
  end
  infos[position] = info
end
return infos
