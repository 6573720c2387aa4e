-- Puts a task in the list that was refused its key, or leaves it at its place there.
--
-- ARGV[1]  the task
-- ARGV[2]  the task that it goes on for, which leaves the list; or ''
-- ARGV[3]  since when it waits, in ms, if the list does not know; 0: since now
-- ARGV[4]  for how long the list is kept, in ms
-- ARGV[5]  for how long it stays expected, in ms, if it is; 0: it goes on waiting
-- returns  {since when it waits, in ms, the server's time, how many wait before it, 1 if it stays expected}
-- #include list.lua
local task, before, known = ARGV[1], ARGV[2], tonumber(ARGV[3])
local its = since(task)
if before ~= '' then
  its = since(before) or its
  redis.call('ZREM', list, before, 'g:' .. before)
end
its = its or known > 0 and known or now
local expected = redis.call('ZSCORE', list, 'g:' .. task)
if ARGV[5] ~= '0' and expected and -tonumber(expected) > now then
  put(-(now + tonumber(ARGV[5])), 'g:' .. task)
  return {its, now, 0, 1}
end
redis.call('ZREM', list, 'g:' .. task)
put(its, task)
redis.call('PEXPIRE', list, math.max(tonumber(ARGV[4]), redis.call('PTTL', list)))
return {its, now, redis.call('ZCOUNT', list, '0', string.format('(%.0f', its)), 0}
