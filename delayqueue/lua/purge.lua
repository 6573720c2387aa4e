-- Forgets dead letters. What has an entry among them and is none loses the entry.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] of each: id, when it died as its ending has it, or '' for whenever that was
-- returns   for each 1 when nothing is left of it, by this call or before, else 0
-- #include common.lua
local function purge(id, died)
  local ending = call('HGET', y, id)
  if ending and died ~= '' and died ~= sub(ending, 2, 12) then
    return 0
  end
  call('ZREM', x, id)
  if not ending then
    return call('HGET', m, id) and 0 or 1
  end
  forget(id)
  count('purged')
  return 1
end

local replies = {}
for i = 3, #ARGV, 2 do
  replies[#replies + 1] = purge(ARGV[i], ARGV[i + 1])
end
flush()
return replies
