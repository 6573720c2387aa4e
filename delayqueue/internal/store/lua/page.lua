-- Reads a page of a sorted set, after a position. The position is that of an entry, which need
-- not be in this set: it may be another partition's.
--
-- KEYS     see common.lua
-- ARGV[1]  which of them it is
-- ARGV[2]  'up' or 'down'
-- ARGV[3]  how many entries to read at most
-- ARGV[4..5] score and member of the position; without them, from the first on
-- returns  {now in ms, member, score, member, score, ...}, without the position's own
local set, up, most, score, member = KEYS[tonumber(ARGV[1])], ARGV[2] == 'up', tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- The order of members with one score is that of their bytes; Lua's < has the locale's.
local function follows(a, b)
  local i = 1
  while i <= #a and string.byte(a, i) == string.byte(b, i) do
    i = i + 1
  end
  return i <= #a and (i > #b or string.byte(a, i) > string.byte(b, i))
end

local from, to = 0, 0 -- between them is the first entry that follows the position, counted upwards
if member then
  from, to = redis.call('ZCOUNT', set, '-inf', '(' .. score), redis.call('ZCOUNT', set, '-inf', score)
end
while from < to do
  local mid = math.floor((from + to) / 2)
  local entry = redis.call('ZRANGE', set, mid, mid)[1]
  if follows(entry, member) or not up and entry == member then
    to = mid
  else
    from = mid + 1
  end
end
if member and not up then
  from = redis.call('ZCARD', set) - from -- counted downwards
end
local page = redis.call(up and 'ZRANGE' or 'ZREVRANGE', set, from, from + most - 1, 'WITHSCORES')
local own = redis.call('HMGET', KEYS[6], 'latest', 'back')
local latest, back_by = tonumber(own[1] or '') or 0, tonumber(own[2] or '') or 0
-- #include clock.lua
table.insert(page, 1, string.format('%.0f', now))
return page
