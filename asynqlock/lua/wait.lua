-- Puts a task in the list that was refused its key, or leaves it at its place there.
--
-- ARGV[1]  the task
-- ARGV[2]  the task that it goes on for, which leaves the list; or ''
-- ARGV[3]  since when it waits, in ms, if the list does not know; 0: since now
-- ARGV[4]  for how long the list is kept, in ms
-- returns  {since when it waits, in ms, the server's time, how many wait before it}
-- #include list.lua
local task, before, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
local its = since(task)
if before ~= '' then
  its = since(before) or its
  redis.call('ZREM', list, before, 'g:' .. before)
end
its = its or known > 0 and known or now
redis.call('ZREM', list, 'g:' .. task)
put(its, task)
redis.call('PEXPIRE', list, math.max(tonumber(ARGV[4]), redis.call('PTTL', list)))
return {its, now, redis.call('ZCOUNT', list, '0', string.format('(%.0f', its))}
