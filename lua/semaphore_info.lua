-- Counts the permits of a semaphore, and lists those that are in use.
-- KEYS: 1 the free permits, 2 the expiries of the others
-- ARGV: 1 the capacity to assume if there is none, or empty, 2 `counts` or `holders`
-- RETURNS: 1 the available permits, as text: free or expired, 2 the permits in use, as text, 3 the
--   capacity, as text, 4 for holders the ids of the permits in use and their expiries in ms since
--   1970, 5 the server's time in ms
-- Atomic: the numbers must be of one moment.
local permits, expiries, capacity, subject = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local stored = redis.call('get', permits)
local description = describe_permits(stored, expiries, capacity, subject == 'holders')
return description
