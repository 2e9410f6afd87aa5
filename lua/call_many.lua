-- Runs many calls of plain_acquire.lua and plain_release.lua as one command.
-- KEYS: n the lock's hash of each call
-- ARGV: 1 two bytes per call: `a` to acquire or `r` to release, then the number of its arguments as
--   a digit, 2 .. the arguments of all calls, in the order of KEYS
-- RETURNS: one reply per call: the reply of its script, -2 or -1 for instance, or its error
-- Atomic: each call by itself; one script costs the server less than one script per call.
local calls, first, replies = ARGV[1], 2, {}

-- These two functions repeat the code of plain_acquire.lua and plain_release.lua.
-- tests/protocol/scripts.rs compares them.
local function plain_acquire(lock, lease, owner, wake, channel)
  local ttl = redis.call('pttl', lock)
  if ttl == -2 then
    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, lease)
    return -2
  end
  if redis.call('hexists', lock, owner) == 1 then
    if ttl < tonumber(lease) then
      redis.call('pexpire', lock, lease)
    end
    return -2
  end
  ask_holder(lock, owner)
  if wake then
    redis.call('publish', wake, channel)
  end
  return ttl
end

local function plain_release(lock, owner, channel, message)
  if redis.call('hdel', lock, owner) == 0 then
    return -1
  end
  return redis.call('publish', channel, message)
end

local acquire_code, release_code, zero = string.byte('ar0', 1, 3)
local scripts = { [acquire_code] = plain_acquire, [release_code] = plain_release }

for position, lock in ipairs(KEYS) do
  local code, digit = string.byte(calls, 2 * position - 1, 2 * position)
  local next_call = first + digit - zero
  -- A call that fails must not prevent the calls after it.
  local succeeded, reply = pcall(scripts[code], lock, unpack(ARGV, first, next_call - 1))
  if not succeeded then
    local text = type(reply) == 'table' and reply.err or reply
    -- Redis before 7 begins the text with the place, which the client removes from such an error.
    local wrapping = string.find(text, '^@user_script') and 'ERR Error running script: ' or ''
    reply = { err = wrapping .. text }
  end
  replies[position] = reply
  first = next_call
end
return replies
