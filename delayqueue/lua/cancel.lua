-- Ends a queued message, before it is run.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  id
-- returns  what state it was in, or '' if there is no such message
clear_sets()
local id = ARGV[3]
local key = redis.pcall('HGET', record(id), 'key')
local m = type(key) == 'string' and load(id, key)
if not m then
  return ''
elseif m.state == 'queued' then
  give_up(id .. ' ' .. key, id, key, 'cancelled')
end
flush()
return m.state
