-- Ends queued messages, before they are run.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] ids
-- returns   for each what state it was in, or '' if there is no such message
-- #include common.lua
clear_sets()
local found = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local key = redis.pcall('HGET', record(id), 'key')
  local m = type(key) == 'string' and load(id, key)
  if m and m.state == 'queued' then
    give_up(id .. ' ' .. key, id, key, 'cancelled')
  end
  found[#found + 1] = m and m.state or ''
end
flush()
return found
