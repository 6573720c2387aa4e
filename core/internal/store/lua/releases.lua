-- Releases the keys of several callers at the same moment, where nobody has asked for them: release.lua for each, in one call.
-- What is not held under a thin record, its caller releases alone.
--
-- KEYS          each caller's record
-- ARGV[2i - 1]  caller i's token; see call.lua
-- ARGV[2i]      the greatest fence that was used under its grant, or 0 if none was
-- returns  for each caller 1, or false if it has to ask alone
local time = redis.call('TIME')
local micros, replies, free = time[1] * 1000000 + time[2], {}, {}
for i, text in ipairs(redis.call('MGET', unpack(KEYS))) do
  local its, used = 'pk2 ' .. ARGV[2 * i - 1] .. ' ', tonumber(ARGV[2 * i])
  replies[i] = text and string.sub(text, 1, #its) == its and used > 0 and used < micros and 1
  if replies[i] then
    free[#free + 1] = KEYS[i]
  end
end
if #free > 0 then
  redis.call('DEL', unpack(free)) -- there is nothing to remember
end
return replies
