-- Forgets dead letters. What has an entry among them and is none loses the entry.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   token of this call, see receipt.lua
-- ARGV[4..] of each: id, when it died in ms, or '' for whenever that was
-- returns   for each 'purged', its state, or '' if there is none such
-- #include common.lua
-- #include receipt.lua
local token = ARGV[3]
local answered = receipt(token)
if answered then
  return answered
end

clear_sets()
local purged = false

local function purge(id, died)
  local f = redis.pcall('HMGET', record(id), 'state', 'ended')
  if f.err or f[1] ~= 'dead' then
    redis.call('ZREM', dead, id)
    return f[1] or ''
  elseif died ~= '' and f[2] ~= died then
    return f[1]
  end
  redis.call('ZREM', dead, id)
  redis.call('DEL', record(id))
  count('purged')
  purged = true
  return 'purged'
end

local replies = {}
for i = 4, #ARGV, 2 do
  replies[#replies + 1] = purge(ARGV[i], ARGV[i + 1])
end
flush()
if purged then
  give_receipt(token, replies)
end
return replies
