-- Notes for how many ms more something holds for the partition: 'paused', nothing is claimed; 'awaited', ends
-- are published, since somebody waits for them.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  what
-- ARGV[4]  for how long, in ms; 0 ends it
-- #include common.lua
local what, ms = ARGV[3], tonumber(ARGV[4])
redis.call('HDEL', c, what)
if ms > 0 then
  redis.call('HSET', c, what, text(now + ms))
  keep(c, math.max(ms, LASTS), 0, endless)
end
return 0
