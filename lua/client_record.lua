-- Writes the record of a client, which names the process behind the client id.
-- KEYS: 1 the record, a hash
-- ARGV: 1 lifetime in ms, 2 host, 3 pid, 4 program, 5 version, 6 start in ms since 1970, 7 label,
--   empty for none
-- RETURNS: 1
-- Atomic: a record without an expiry would outlive its client.
local record = KEYS[1]
local lifetime, host, pid, program = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local version, start, label = ARGV[5], ARGV[6], ARGV[7]

redis.call('hset', record, 'host', host, 'pid', pid, 'program', program, 'version', version)
redis.call('hset', record, 'start', start)
if label ~= '' then
  redis.call('hset', record, 'label', label)
end
redis.call('pexpire', record, lifetime)
return 1
