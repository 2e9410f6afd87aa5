-- Reads the count and the round of a latch.
-- KEYS: 1 the count, 2 the round
-- ARGV: none
-- RETURNS: 1 the count, as text, 0 without a key, 2 the round, or empty
-- Atomic: count and round must be of one moment.
local latch, round = KEYS[1], KEYS[2]

return { redis.call('get', latch) or '0', redis.call('get', round) or '' }
