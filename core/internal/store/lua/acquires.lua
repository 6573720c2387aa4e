-- Takes the keys of several callers who ask at the same moment: acquire.lua for each, in one call. What is not free its caller
-- asks for alone, but for one who does not wait if the record is thin; and so does whom Redis refuses. Nothing is written here
-- but by SET NX: what follows a write in a script Redis does not refuse when its memory is full.
--
-- KEYS          each caller's record
-- ARGV[1]       see late.lua
-- ARGV[4i - 2]  caller i's token; see call.lua
-- ARGV[4i - 1]  length of its lease, in ms
-- ARGV[4i]      its description
-- ARGV[4i + 1]  '' if it does not wait
-- returns  for each caller what acquire.lua returns, or false if it has to ask alone; late: {2, 0, server's time in ms, 0}
local time = redis.call('TIME')
local its = time[1] .. string.sub('00000' .. time[2], -6)
local micros = tonumber(its)
local now = math.floor(micros / 1000)
if ARGV[1] - now < 0 and ARGV[1] ~= '0' then
  return {2, 0, now, 0}
end
local replies, held, callers = {}, {}, {}
for i, key in ipairs(KEYS) do
  local set = redis.pcall('SET', key, 'pk2 ' .. ARGV[4 * i - 2] .. ' ' .. its .. ' ' .. ARGV[4 * i], 'NX', 'PX', ARGV[4 * i - 1])
  if set and set.ok then
    replies[i] = micros
  elseif ARGV[4 * i + 1] ~= '' then
    replies[i] = false
  else
    held[#held + 1], callers[#callers + 1] = key, i
  end
end
if #held == 0 then
  return replies
end
-- #include refusal.lua
for n, text in ipairs(redis.call('MGET', unpack(held))) do
  local i = callers[n]
  replies[i] = refusal(KEYS[i], ARGV[4 * i - 2], text) or false
end
return replies
