-- Takes a task out of the list: it has its key, or its wait has ended.
--
-- KEYS[1]  the list, as in list.lua
-- ARGV[1]  the task
-- returns  how many wait
redis.call('ZREM', KEYS[1], ARGV[1], 'g:' .. ARGV[1])
return redis.call('ZCOUNT', KEYS[1], '0', '(1000000000000000')
