-- Tells who holds locks and permits, to find the holders whose process is gone.
-- KEYS: n the locks' hashes, or the free permits of semaphores
-- ARGV: n the set of the permits in use, empty for a lock
-- RETURNS: one list per key: 1 the mode of a read-write lock, else an empty text, 2 .. a sample of
--   the fields, each with its value; of a semaphore the ids that expire next, each with its expiry;
--   nothing for a key of another type
-- Atomic: not needed; one script costs less than one command per lock.
local lists, sample = {}, 64

for position, key in ipairs(KEYS) do
  local permits, mode, holders = ARGV[position], '', nil
  if permits ~= '' then
    holders = redis.pcall('zrange', permits, 0, sample - 1, 'withscores')
  else
    holders = redis.pcall('hrandfield', key, sample, 'withvalues')
    -- The hash of a plain lock has one field.
    mode = #holders > 2 and redis.pcall('hget', key, 'mode') or ''
  end
  table.insert(holders, 1, mode)
  -- Without the permission for HGET, a read hold would look like a plain one.
  lists[position] = (holders.err or type(mode) == 'table') and {} or holders
end
return lists
