-- Finds the locks among many that are worth an attempt, and asks for holds that may linger.
-- KEYS: n the locks' hashes
-- ARGV: 1 the client that polls
-- RETURNS: the positions (from 1) of the locks that are free or cannot be read
-- Atomic: not needed; one script costs less than one command per lock.
local free, own = {}, ARGV[1]

for position, lock in ipairs(KEYS) do
  local fields = redis.pcall('hlen', lock)
  if type(fields) == 'table' or fields == 0 then
    free[#free + 1] = position
  else
    ask_holder(lock, own)
  end
end
return free
