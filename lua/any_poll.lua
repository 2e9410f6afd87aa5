-- Looks which of many locks are free.
-- KEYS: n locks' hashes
-- ARGV: none
-- RETURNS: the positions (from 1) of the locks that nobody holds
-- Atomic: it need not be; it is one script so that many locks cost one command.
local free = {}

for position, lock in ipairs(KEYS) do
  if redis.call('exists', lock) == 0 then
    free[#free + 1] = position
  end
end
return free
