-- Asks another client whose hold may linger to give it up. Precedes scripts that refuse callers.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: the hold that is asked for must be the one that the caller was refused for.

-- The last digit of a number of ours, 5 or 7, says that the hold may linger.
local lingering_form = '^(%x+%-%x+%-8%x+%-%x+%-%x+):(%d*[57])%f[:%z]'

-- Besides its owner field a lock that may linger has two fields at most: the mode, and a read hold
-- of the writer. Without the permissions, the caller waits for the end of the linger time.
local function ask_holder(lock, own)
  for _, field in ipairs(redis.pcall('hrandfield', lock, 3)) do
    local client, number = string.match(field, lingering_form)
    if client and client ~= string.sub(own, 1, 36) then
      local wake = 'leasehold:wake:{' .. client .. '}'
      redis.pcall('publish', wake, 'asked ' .. number .. ' ' .. lock)
    end
  end
end
