-- Looks which of many locks are worth asking for.
-- KEYS: n locks' hashes
-- ARGV: none
-- RETURNS: the positions (from 1) of the locks that are free, or where something is wrong
-- Atomic: it need not be; it is one script so that many locks cost one command.
local free = {}

for position, lock in ipairs(KEYS) do
  local held = redis.pcall('hlen', lock)
  if type(held) == 'table' or held == 0 then
    free[#free + 1] = position
  end
end
return free
