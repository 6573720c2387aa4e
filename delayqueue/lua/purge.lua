-- Forgets dead letters. What has an entry among them and is none loses the entry.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   token of this call, see receipt.lua
-- ARGV[4..] of each: id, when it died as its ending has it, or '' for whenever that was
-- returns   for each 'purged', its state, or '' if there is none such
-- #include common.lua
-- #include state.lua
-- #include receipt.lua
local answered = receipt(ARGV[3])
if answered then
  return answered
end

local function purge(id, died)
  local state, ending = state_of(id)
  if state ~= 'dead' then
    call('ZREM', x, id)
  elseif died == '' or died == string.sub(ending, 2, 12) then
    call('ZREM', x, id)
    call('HDEL', y, id)
    forget(id)
    count('purged')
    return 'purged'
  end
  return state
end

local replies = {}
for i = 4, #ARGV, 2 do
  replies[#replies + 1] = purge(ARGV[i], ARGV[i + 1])
end
if counts.purged then
  give_receipt(ARGV[3], replies)
end
flush()
return replies
