-- What scripts see, and how they run.
-- ARGUMENTS: call and try_call (run a command; its error is raised, or returned as a table),
--   sha1 (digest of a text), settled (an error as a script sees it), line (of the running script).
-- RETURNS: run(script, keys, args) -> true, value | false, error, line, is_counted; and
--   compile(text, name) -> script | nil, error.
local call, try_call, sha1, settled, line = ...
local error, loadstring, next, pairs, pcall = error, loadstring, next, pairs, pcall
local rawget, rawset = rawget, rawset
local select, setfenv, setmetatable, tostring = select, setfenv, setmetatable, tostring
local type, xpcall = type, xpcall
local find, gsub, sub = string.find, string.gsub, string.sub

-- The text of an error starts with a code.
local function with_code(text)
  if sub(text, 1, 1) ~= '-' then
    return 'ERR ' .. text
  end
  if not find(text, ' ', 1, true) then
    return 'ERR ' .. sub(text, 2)
  end
  return sub(text, 2)
end

local redis = {
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REDIS_VERSION = '7.0.15',
  REDIS_VERSION_NUM = 0x0007000f,
  call = call,
  pcall = try_call,
  log = function() end,
  replicate_commands = function() return true end,
}

function redis.error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  if sub(text, 1, 1) ~= '-' then
    text = '-' .. text
  end
  return { err = with_code(text) }
end

function redis.status_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  return { ok = text }
end

function redis.sha1hex(...)
  if select('#', ...) ~= 1 then
    error({ err = 'ERR wrong number of arguments' }, 0)
  end
  local text = ...
  local has_text = type(text) == 'string' or type(text) == 'number'
  return sha1(has_text and tostring(text) or '')
end

-- Scripts share tables, and must not change them: they see a proxy of each.
local originals = {}

local readonly = 'Attempt to modify a readonly table'

local function refuse()
  error(readonly, 2)
end

local function shared(original)
  local proxy = setmetatable({}, { __index = original, __newindex = refuse, __metatable = false })
  originals[proxy] = original
  return proxy
end

math.random, math.randomseed = nil, nil
getmetatable('').__metatable = false

local globals = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs,
  rawequal = rawequal, redis = shared(redis), select = select, setmetatable = setmetatable,
  tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, _VERSION = _VERSION,
  math = shared(math), string = shared(string), table = shared(table),
}
globals._G = shared(globals)

function globals.rawget(object, key)
  return rawget(originals[object] or object, key)
end

function globals.rawset(object, key, value)
  if originals[object] then
    error(readonly, 0)
  end
  return rawset(object, key, value)
end

function globals.next(object, key)
  return next(originals[object] or object, key)
end

function globals.pairs(object)
  if originals[object] then
    return globals.next, object, nil
  end
  return pairs(object)
end

-- The pcall of Redis returns the text of an error.
local function settle(ok, ...)
  if ok then
    return true, ...
  end
  local problem = settled((...))
  if type(problem) == 'table' and type(problem.err) == 'string' then
    problem = problem.err
  end
  return false, problem
end

function globals.pcall(...)
  return settle(pcall(...))
end

function globals.xpcall(run, handler)
  return xpcall(run, function(problem) return handler(settled(problem)) end)
end

setmetatable(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

local failed_at
local function handler(problem)
  failed_at = line()
  if type(problem) == 'string' and failed_at then
    -- What the functions above refuse, the script has done.
    problem = gsub(problem, '^prelude:%d+:', 'user_script:' .. failed_at .. ':')
  end
  return settled(problem)
end

local function run(script, keys, args)
  rawset(globals, 'KEYS', keys)
  rawset(globals, 'ARGV', args)
  local ok, value = xpcall(script, handler)
  if ok then
    return true, value, nil, false
  end
  if type(value) ~= 'table' then
    return false, 'ERR ' .. tostring(value), failed_at, false
  end
  return false, value.err, failed_at, value.ignore_error_stats_update == true
end

local function compile(text, name)
  local script, problem = loadstring(text, name)
  return script and setfenv(script, globals._G), problem
end

return run, compile
