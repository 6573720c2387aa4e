-- Reads a page of a sorted set, from a position on. The position is that of an
-- entry, which need not be there any more: then the page begins with the first of its score.
--
-- KEYS     see common.lua
-- ARGV[1]  which of them it is
-- ARGV[2]  'up' or 'down'
-- ARGV[3]  how many entries to read at most
-- ARGV[4..5] score and member of the position; without them, from the first on
-- returns  {now in ms, member, score, member, score, ...}, perhaps with some up to the position
local call = redis.call
local index, up, most, score, member = tonumber(ARGV[1]), ARGV[2] == 'up', tonumber(ARGV[3]), ARGV[4], ARGV[5]
local set, from = KEYS[index], 0
if member and index == 6 then -- all of one score
  from = call('ZLEXCOUNT', set, '-', '[' .. member)
elseif member then
  from = call('ZSCORE', set, member) == score and call(up and 'ZRANK' or 'ZREVRANK', set, member) or
    up and call('ZCOUNT', set, '-inf', '(' .. score) or call('ZCOUNT', set, '(' .. score, '+inf')
end
local clock = call('TIME')
local page = call(up and 'ZRANGE' or 'ZREVRANGE', set, from, from + most - 1, 'WITHSCORES')
table.insert(page, 1, string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)))
return page
