-- Reads the record of the leader, if the owner that it names holds the lock.
-- KEYS: 1 the lock's hash, 2 the record of the leader, a hash
-- ARGV: none
-- RETURNS: empty without a leader; else 1 the owner, 2 the token and 3 the value, both as text,
--   4 the lock's remaining lease in ms, -1 without an expiry
-- Atomic: the record counts only while its owner holds the lock.
local lock, record = KEYS[1], KEYS[2]

local known = redis.call('hmget', record, 'owner', 'token', 'value')
if not known[1] or redis.call('hexists', lock, known[1]) == 0 then
  return {}
end
return { known[1], known[2] or '0', known[3] or '', redis.call('pttl', lock) }
