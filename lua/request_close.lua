-- Makes late copies of a request without a known outcome do nothing.
-- KEYS: 1 the record of the request
-- ARGV: 1 lifetime of the record in ms
-- RETURNS: 1 the request has not run and will not run; 0 it has run
-- Atomic: a copy of the request must not run between the check and the write.
local record, lifetime = KEYS[1], ARGV[1]

if redis.call('exists', record) == 1 then
  return 0
end
-- A server with full memory refuses SET as the first write. This removes nothing.
redis.call('del', record)
redis.call('set', record, 0, 'px', lifetime)
return 1
