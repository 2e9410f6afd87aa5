-- Makes many calls of other scripts, each a function of `scripts` by its mark, which stands before this text.
-- KEYS: n the key of each call
-- ARGV: 1 two bytes per call: the mark of its script and, as a digit, how many arguments it has, 2 .. those of all calls
-- RETURNS: an answer per call; nil for one that failed, which is to be made by itself
-- Atomic: each call by itself; it is one script so that many calls cost one command.
local calls, first, answers = ARGV[1], 2, {}

for position, key in ipairs(KEYS) do
  local mark, digit = string.byte(calls, 2 * position - 1, 2 * position)
  local next = first + digit - string.byte('0')
  -- A call that fails must not keep those behind it from being made.
  local made, answer = pcall(scripts[mark], key, unpack(ARGV, first, next - 1))
  answers[position] = made and answer
  first = next
end
return answers
