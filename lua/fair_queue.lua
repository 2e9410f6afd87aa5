-- Finds the head of the queue of a fair lock. Precedes the scripts of fair locks.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: a waiter is removed by the timeout that was read.
local time = redis.call('time')

-- The time of the server in ms.
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns the head of the queue. Removes the waiters before it whose timeout has passed.
local function head_of(queue, timeouts)
  local head = redis.call('lindex', queue, 0)
  while head and (tonumber(redis.call('zscore', timeouts, head)) or 0) <= now do
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, head)
    head = redis.call('lindex', queue, 0)
  end
  return head
end

