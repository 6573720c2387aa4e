-- Has nothing claimed for so many ms, or ends that. It works when Redis is out of memory.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  for how long, in ms; 0 ends it
-- #include common.lua
local span = tonumber(ARGV[3])
call('HDEL', c, 'paused')
if span > 0 then
  call('HSET', c, 'paused', string.format('%.0f', now + span))
  keep(c, span)
end
return 0
