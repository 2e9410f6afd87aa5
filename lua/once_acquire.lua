-- Tells the result of work that is done once, or takes the work as a fenced lock is taken.
-- KEYS: 1 the lock's hash, 2 the last token handed out, 3 the result, a hash
-- ARGV: 1 lease in ms, 2 owner, 3 the number of tokens in the block, 4 and 5, only from a caller
--   that will wait: the client's wake channel, and the lock's channel, which is published there on
--   a refusal
-- RETURNS: -1 held without expiry; else the holder's remaining lease in ms, or if acquired the
--   first token of the block, negated; of work that is done a list: 1 the time of the result in ms
--   since 1970, 2 its token, 3 its value
-- Atomic: no result may come between the look and the grant.
local lock, counter, result, lease, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local size, wake, channel = ARGV[3], ARGV[4], ARGV[5]

-- How long the last token stays, a day in ms: keys are many, and few are used again. Without it the
-- next token follows from the server's clock.
local day = 86400000

local done = redis.call('hmget', result, 'at', 'token', 'value')
if done[1] then
  return done
end
local token_or_lease = take_fenced(lock, counter, lease, owner, size, wake, channel)
if token_or_lease < -1 then
  redis.call('pexpire', counter, day)
end
return token_or_lease
