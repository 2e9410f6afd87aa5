-- Describes locks: the remaining time, the holds and, for a search, the queue and the counter.
-- KEYS: n the locks' hashes
-- ARGV: 1 `search` to leave out hashes without an owner field and to read queues and counters, or
--   `look`, 2 .. the name of each lock with its hash tag
-- RETURNS: one list per lock, empty for a key that is no hash: the reply of PTTL, then the fields
--   and values, then the ms left of each reader in the order of the fields, -2 if its time-out key
--   is gone, -1 if it has no expiry or cannot be read, then for a search the queue, and 1 if the
--   token counter exists
-- Atomic: the parts of one lock must belong together.
local searches = ARGV[1] == 'search'

-- Returns nothing if the key has another type, or is at another node while its slot moves.
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

-- One of two fields of a lock is an owner field. Large hashes of other programs are not read.
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

-- Redisson has a time-out key per re-entry of a reader; the last ones live longest.
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

local infos = {}
for position, lock in ipairs(KEYS) do
  local name = ARGV[position + 1]
  local fields = (not searches or has_owner(lock)) and read('hgetall', lock) or {}
  local info = #fields > 0 and { redis.call('pttl', lock), fields, reader_leases(fields, name) }
  if info and searches then
    info[4] = read('lrange', 'redisson_lock_queue:' .. name, 0, -1) or {}
    info[5] = read('exists', 'redisson_lock_token:' .. name) or 0
  end
  infos[position] = info or {}
end
return infos
