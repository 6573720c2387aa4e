-- Cancels queued messages, before they are run. One that is too old expires in place of that.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] ids
-- returns   for each 1 when it was queued and is cancelled, else 0
-- #include common.lua
-- #include finish.lua
-- #include ended.lua
redis.call('HDEL', COUNTS, '')
local replies = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local rec = redis.call('HGET', MESSAGES, id)
  local queued = rec and rec:sub(1, 1) == '1' and not is_running(redis.call('HGET', ATTEMPTS, id)) and not redis.call('HGET', DEAD_LETTERS, id)
  local how = queued and (too_old(rec) and 'e' or 'c')
  if how then
    discard(id, key_of(rec), rec, how)
    tidy()
  end
  replies[#replies + 1] = how == 'c' and 1 or 0
end
return conclude(replies)
