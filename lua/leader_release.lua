-- Ends a term or the wait of a candidate, and grants a free lock to the best candidate.
-- KEYS: 1 the lock's hash, 2 the queue, 3 the waiting clients, 4 the last fencing token, 5 the
--   record of the leader, a hash
-- ARGV: 1 owner, 2 channel of the observers
-- RETURNS: -1 not held by this owner; 1 granted to the next candidate; 0 free
-- Atomic: only the owner may free the lock, and no caller may come before the best candidate.
local hash, queue, clients, counter, record = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, channel = ARGV[1], ARGV[2]

local was_held, is_granted = finish(lock_of(hash, queue, clients, counter), owner)
-- A key of another type is no record, and must not keep the lock.
if redis.pcall('hget', record, 'owner') == owner then
  redis.call('del', record)
  redis.call('publish', channel, '0')
end
if not was_held then
  return -1
end
return is_granted and 1 or 0
