-- Moves away what has the name but not the type of one of a partition's keys.
--
-- KEYS, ARGV[1..2]  see common.lua
-- returns  how many there were
-- #include common.lua
local found = 0
for i = 1, 16 do
  local kind = call('TYPE', KEYS[i])
  kind = type(kind) == 'table' and kind.ok or kind
  local want = (i == 3 or i == 4 or i == 6 or i == 8 or i == 10) and 'zset' or 'hash'
  if kind ~= 'none' and kind ~= want then
    call('RENAME', KEYS[i], KEYS[17])
    call('PEXPIRE', KEYS[17], dead_retention)
    found = found + 1
  end
end
return found
