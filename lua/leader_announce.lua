-- Writes the record of a leader, and tells the observers about a change.
-- KEYS: 1 the lock's hash, 2 the record of the leader, a hash
-- ARGV: 1 owner, 2 token, 3 value, 4 lifetime in ms, 5 channel of the observers
-- RETURNS: 1 the record names the owner; 0 the owner does not hold the lock
-- Atomic: a record must not name a hold that ended before, nor a value of another term.
local lock, record = KEYS[1], KEYS[2]
local owner, token, value, lifetime, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('hexists', lock, owner) == 0 then
  return 0
end
local known = redis.call('hmget', record, 'owner', 'token', 'value')
if known[1] == owner and known[2] == token and known[3] == value then
  redis.call('pexpire', record, lifetime)
  return 1
end
redis.call('hset', record, 'owner', owner, 'token', token, 'value', value)
redis.call('pexpire', record, lifetime)
redis.call('publish', channel, token)
return 1
