-- Counts the messages of a partition. What is junk counts nothing.
--
-- KEYS     a partition's base name and another one, see common.lua
-- ARGV[1]  how long dead letters are kept, in ms
-- returns  {now in ms, queued, running, dead, due, when the first was due in ms or '',
--           PTTL of the pause in ms, the counts}, the counts as strings
local base = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function num(n) return string.format('%.0f', n) end

local function number(...)
  local n = redis.pcall(...)
  return type(n) == 'number' and n or 0
end

local first = redis.pcall('ZRANGEBYSCORE', base .. ':due', 0, num(now), 'WITHSCORES', 'LIMIT', 0, 1)
local stats = {
  num(now),
  number('ZCARD', base .. ':open'),
  number('ZCARD', base .. ':running'),
  number('ZCOUNT', base .. ':dead', num(now - ARGV[1]), '+inf'),
  number('ZCOUNT', base .. ':due', '-inf', num(now)),
  not first.err and first[2] or '',
  redis.call('PTTL', base .. ':paused'),
}
local counts = redis.pcall('HMGET', base .. ':counts',
  'enqueued', 'done', 'retried', 'expired', 'cancelled', 'dead', 'redriven', 'purged')
for i = 1, 8 do
  stats[#stats + 1] = not counts.err and counts[i] or '0'
end
return stats
