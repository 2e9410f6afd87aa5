-- Tells whether a hash is a lock, and tells its holders of its end. Precedes scripts that do so.
-- KEYS: -
-- ARGV: -
-- RETURNS: -
-- Atomic: the fields that are checked must be those that are deleted.

local client_form, sample = '^%x+%-%x+%-%x+%-%x+%-%x+$', 1000

local suffixes = { [''] = 1, [':write'] = 1, [':min_hold'] = 1, [':write:min_hold'] = 1 }

local function is_owner_field(field, value)
  local suffix = string.match(string.sub(field, 37), '^:%d+(.*)$')
  local is_client = string.find(string.sub(field, 1, 36), client_form)
  return is_client and suffix and suffixes[suffix] and string.find(value, '^%d+$')
end

-- Besides its owner fields a lock has one field at most: the mode of a read-write lock, or the name
-- of a holder with the number of its holds.
local function is_lock(fields)
  local has_owner, has_hold, other, other_value = false, false, nil, nil
  for at = 1, #fields, 2 do
    local field, value = fields[at], fields[at + 1]
    if is_owner_field(field, value) then
      has_owner, has_hold = true, has_hold or value == '0'
    elseif other then
      return false
    else
      other, other_value = field, value
    end
  end
  local is_mode = other == 'mode' and (other_value == 'read' or other_value == 'write')
  local is_holder = other and has_hold and string.find(other_value, '^%d+$')
  return has_owner and (not other or is_mode or is_holder)
end

-- Returns the error for a hash that is no lock. The check of a sample suffices: of any two fields
-- of a lock, one is an owner field.
local function refusal_of(lock)
  if not is_lock(redis.call('hrandfield', lock, sample, 'withvalues')) then
    return redis.error_reply('WRONGTYPE the hash is no lock')
  end
end

-- Has the clients of up to `sample` holders check their holds, which this script ends. Each message
-- names the lock. Without the permission, or without a listener, a holder finds the loss later.
local function tell_holders(lock)
  local told = {}
  for _, field in ipairs(redis.call('hrandfield', lock, sample)) do
    local client = string.sub(field, 1, 36)
    if string.find(client, client_form) and not told[client] then
      told[client] = true
      local wake = 'leasehold:wake:{' .. client .. '}'
      redis.pcall('publish', wake, 'freed ' .. lock)
    end
  end
end
