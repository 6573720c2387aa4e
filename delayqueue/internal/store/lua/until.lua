-- Sets for how long the partition is 'paused' (nothing is claimed) or 'awaited' (ends are published, since a call waits
-- for one).
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  'paused' or 'awaited'
-- ARGV[4]  for how long, in ms; 0 ends it
-- returns  0
-- #include common.lua
local what, ms = ARGV[3], tonumber(ARGV[4])
redis.call('HDEL', COUNTS, what)
if ms > 0 then
  redis.call('HSET', COUNTS, what, text(now + ms))
  keep(COUNTS, math.max(ms, LASTS), 0, endless)
end
return 0
