-- Counts the permits of a semaphore, and lists those that are in use.
-- KEYS: 1 the free permits, 2 the expiries of the others
-- ARGV: 1 the capacity to assume if there is none, or empty, 2 `counts` or `holders`, 3 the key of
--   the slots
-- RETURNS: 1 the available permits, as text: free or expired, 2 the permits in use, as text, 3 the
--   capacity, as text, 4 for holders the ids of the permits in use and their expiries in ms since
--   1970, 5 the server's time in ms, 6 for holders each slot that was given and the id of its
--   permit
-- Atomic: the numbers must be of one moment.
local permits, expiries = KEYS[1], KEYS[2]
local capacity, subject, slots = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('get', permits)
local description = describe_permits(stored, expiries, capacity, subject == 'holders')
if subject == 'holders' and not description.err then
  description[6] = read_slots(slots)
end
return description
