-- Counts the messages of a partition.
--
-- KEYS, ARGV[1..2]  see common.lua
-- returns  {now in ms, queued, running, dead, due, when the first was due in ms or '',
--           when the pause ends in ms, or 0, the counts,
--           how many keys are halted, how many bytes all takes}, the counts and the last as strings
-- #include common.lua
local first = call('ZRANGEBYSCORE', z, '0', NOW, 'WITHSCORES', 'LIMIT', '0', '1')
local running, paused = call('ZCARD', w), paused_until()
local stats = {
  NOW,
  math.max(0, call('HLEN', m) - call('ZCARD', x) - running),
  running,
  call('ZCOUNT', x, now - dead_retention, '+inf'),
  call('ZCOUNT', z, '-inf', NOW),
  first[2] or '',
  string.format('%.0f', paused > now and paused or 0),
}
for _, n in ipairs(call('HMGET', c, 'enqueued', 'done', 'retried', 'expired', 'cancelled', 'dead', 'redriven', 'purged', 'superseded')) do
  stats[#stats + 1] = n or '0'
end
stats[#stats + 1] = call('HLEN', h)
local bytes = 0
for _, n in ipairs(call('HMGET', c, 'bytes', 'ended0', 'ended1', 'ended2', 'ended3', 'ended4')) do
  bytes = bytes + (whole(n) or 0)
end
stats[#stats + 1] = string.format('%.0f', bytes)
return stats
