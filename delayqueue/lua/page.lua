-- Reads a page of a sorted set, from a position on. The position is that of an
-- entry, which need not be there any more.
--
-- KEYS     see common.lua
-- ARGV[1]  which of them it is
-- ARGV[2]  'up' or 'down'
-- ARGV[3]  how many entries to read at most
-- ARGV[4..5] score and member of the position; without them, from the first on
-- returns  {now in ms, member, score, member, score, ...}, without the position's own
local set, up, most, member = KEYS[tonumber(ARGV[1])], ARGV[2] == 'up', tonumber(ARGV[3]), ARGV[5]
local clock = redis.call('TIME')
local page = {string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))}

local size = redis.call('ZCARD', set)

-- Lua does not read every spelling of infinity.
local function score_of(s)
  return tonumber(s) or (string.sub(s, 1, 1) == '-' and -math.huge or math.huge)
end

-- The order of two members: by their bytes, as Redis has it. Lua's < has the locale's.
local function compare(a, b)
  for i = 1, math.min(#a, #b) do
    local d = string.byte(a, i) - string.byte(b, i)
    if d ~= 0 then
      return d
    end
  end
  return #a - #b
end

-- from becomes how many entries are not after the position, or going down before it.
local from, to = up and 0 or size, size
if member then
  from = 0
  local score = score_of(ARGV[4])
  while from < to do
    local mid = math.floor((from + to) / 2)
    local entry = redis.call('ZRANGE', set, mid, mid, 'WITHSCORES')
    local order = score_of(entry[2]) - score
    if score_of(entry[2]) == score then -- also of infinities, which have no difference
      order = compare(entry[1], member)
    end
    if order < 0 or up and order == 0 then
      from = mid + 1
    else
      to = mid
    end
  end
end

local entries
if up then
  entries = redis.call('ZRANGE', set, from, from + most - 1, 'WITHSCORES')
else
  entries = redis.call('ZREVRANGE', set, size - from, size - from + most - 1, 'WITHSCORES')
end
for _, s in ipairs(entries) do
  page[#page + 1] = s
end
return page
