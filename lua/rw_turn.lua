-- The turns of the readers and writers that wait for a read-write lock. Precedes its scripts.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: what is announced must be of one moment.

-- A hash beside the lock has up to three entries. Each has the ms at which it ends, and a word:
-- `writer` the client of the writer that is the next; `readers` the length of their turn; `turn`,
-- which is that of the readers, the client of the writer before.
local entry_form = '^(%d+) (.*)$'

-- Returns the ms of a reply of TIME.
local function millis(reply)
  return reply[1] * 1000 + math.floor(reply[2] / 1000)
end

-- Returns the word of an entry that has not ended, and the ms that are left of it.
local function read_entry(entry, now)
  local ends, word = string.match(entry or '', entry_form)
  if ends and tonumber(ends) > now then
    return word, tonumber(ends) - now
  end
end

-- Writes an entry that ends after this span. A server with full memory refuses that: then the
-- callers have no turns.
local function announce(turns, field, span, now, word)
  redis.pcall('hset', turns, field, string.format('%.0f ', now + span) .. word)
  if redis.call('pttl', turns) < tonumber(span) then
    redis.call('pexpire', turns, span)
  end
end

local function client_of(owner)
  return string.sub(owner, 1, 36)
end
