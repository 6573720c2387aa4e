-- Ends queued messages, before they are run.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] ids
-- returns   for each 1 when it was queued, else 0
-- #include common.lua
-- #include ended.lua
local found = {}
for i = 3, #ARGV do
  local id, answer = ARGV[i], 0
  local rec = call('HGET', m, id)
  if rec and sub(rec, 1, 1) == '1' and not is_running(call('HGET', r, id)) and not call('HGET', y, id) then
    give_up(id, key_of(rec), rec, too_old(rec) and 'e' or 'c')
    answer = 1
  end
  found[#found + 1] = answer
end
flush()
return found
