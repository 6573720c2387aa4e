-- Removes dead letters, and entries among them that are not dead letters.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] for each: id, and when it died as its ending has it, or '' for any time
-- returns   for each 1 when it is removed, by this call or before, else 0
-- #include common.lua
-- #include finish.lua
-- #include ended.lua
-- #include letters.lua
redis.call('HDEL', COUNTS, '')
local replies = {}
for i = 3, #ARGV, 2 do
  local id, died = ARGV[i], ARGV[i + 1]
  local ending = redis.call('HGET', DEAD_LETTERS, id)
  local meant = ending and (died == '' or died == ending:sub(2, 12))
  if meant then
    forget(id)
    count('purged')
  elseif not ending then
    remove(DEAD, id)
  end
  tidy()
  replies[#replies + 1] = (meant or not ending and not redis.call('HGET', MESSAGES, id)) and 1 or 0
end
return conclude(replies)
