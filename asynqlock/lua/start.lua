-- Takes a task out of the list: it has its key, or its wait has ended.
--
-- ARGV[1]  the task
-- returns  how many wait
-- #include list.lua
redis.call('ZREM', list, ARGV[1], 'g:' .. ARGV[1])
return redis.call('ZCOUNT', list, '0', string.format('(%.0f', AWAY))
