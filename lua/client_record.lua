-- Writes the record of a client, which names the process behind the client id.
-- KEYS: 1 the record, a hash
-- ARGV: 1 lifetime in ms, 2 .. the fields, each followed by its value
-- RETURNS: 1
-- Atomic: a record without an expiry would outlive its client.
local record, lifetime, first = KEYS[1], ARGV[1], 2

redis.call('hset', record, unpack(ARGV, first, #ARGV))
redis.call('pexpire', record, lifetime)
return 1
