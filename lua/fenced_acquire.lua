-- Takes a free lock with a block of fencing tokens, or restores this hold's full lease.
-- KEYS: 1 the lock's hash, 2 the last token handed out
-- ARGV: 1 lease in ms, 2 owner, 3 the number of tokens in the block, 4 and 5, only from a caller
--   that will wait: the client's wake channel, and the lock's channel, which is published there on
--   a refusal
-- RETURNS: -1 held without expiry; else the holder's remaining lease in ms, or if acquired the
--   first token of the block, negated
-- Atomic: no other client may take the lock between the check and the write, and no token may be
--   handed out twice.
local lock, counter, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local size, wake, channel = ARGV[3], ARGV[4], ARGV[5]

return take_fenced(lock, counter, lease, owner, size, wake, channel)
