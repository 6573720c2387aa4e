-- Has the ends of messages published for so many ms: somebody waits for them. It works when
-- Redis is out of memory.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  for how long, in ms
-- #include common.lua
local span = tonumber(ARGV[3])
call('HDEL', c, 'awaited')
call('HSET', c, 'awaited', string.format('%.0f', now + span))
keep(c, span)
return 0
