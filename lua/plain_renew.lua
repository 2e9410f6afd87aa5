-- Extends the leases of many holds and never shortens one. A lease of -2 only checks the holds.
-- KEYS: n the locks' hashes
-- ARGV: 1 lease in ms, 2 .. n + 1 the owners, in the order of KEYS
-- RETURNS: the positions (from 1) of the locks that their owners no longer hold
-- Atomic: no lease may be extended for a hold that ends between the check and the write.
local lease, lost = ARGV[1], {}

for position, lock in ipairs(KEYS) do
  -- A key that is no longer a hash must not prevent the renewal of the others.
  local held = redis.pcall('hexists', lock, ARGV[position + 1])
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
  elseif held ~= 1 then
    lost[#lost + 1] = position
  elseif redis.call('pttl', lock) < tonumber(lease) then
    redis.call('pexpire', lock, lease)
  end
end
return lost
