-- Ends queued messages, before they are run.
--
-- KEYS, ARGV[1..2]  see common.lua and state.lua
-- ARGV[3..] ids
-- returns   for each what state it was in, or '' if there is no such message
-- #include common.lua
-- #include state.lua
local found = {}
for i = 3, #ARGV do
  local state, msg = state_of(ARGV[i])
  if state == 'queued' then
    give_up(msg, 'c')
  end
  found[#found + 1] = state
end
flush()
return found
