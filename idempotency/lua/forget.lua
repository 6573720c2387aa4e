-- Removes a record, if it is still in the state that the caller has seen.
--
-- KEYS[1]  the record, as in begin.lua
-- ARGV[1]  '1' if it had begun, else '0'
-- ARGV[2]  '1' if it had an outcome, else '0'
-- returns  1, or 0 if there is none or its state has changed
local is = redis.call('HMGET', KEYS[1], 'fence', 'outcome')
if (is[1] and '1' or '0') ~= ARGV[1] or (is[2] and '1' or '0') ~= ARGV[2] then
  return 0
end
return redis.call('DEL', KEYS[1])
