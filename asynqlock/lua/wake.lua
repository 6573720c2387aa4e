-- Chooses who is to be woken since the key is free: the task that has waited for longest, unless
-- enough were woken that are expected yet.
--
-- ARGV[1]  how many may be expected at a time
-- ARGV[2]  for how long a task is expected, in ms
-- ARGV[3]  a task that was chosen, and is no longer there: it leaves the list; or ''
-- ARGV[4]  a task that was chosen, and could not be woken: it goes on waiting; or ''
-- ARGV[5]  how many of the first are not to be chosen
-- returns  the task; 1 if enough are expected; 0 if none waits
-- #include list.lua
if ARGV[3] ~= '' then
  redis.call('ZREM', list, ARGV[3], 'g:' .. ARGV[3])
end
if ARGV[4] ~= '' then
  redis.call('ZREM', list, 'g:' .. ARGV[4])
  local its = since(ARGV[4])
  if its then
    put(its, ARGV[4])
  end
end
redis.call('ZREMRANGEBYSCORE', list, string.format('%.0f', -now), '(0')
if redis.call('ZCOUNT', list, '-inf', '(0') >= tonumber(ARGV[1]) then
  return 1
end
local first = redis.call('ZRANGEBYSCORE', list, '0', string.format('(%.0f', AWAY), 'WITHSCORES', 'LIMIT', ARGV[5], '1')
local task = first[1]
if not task then
  return 0
end
put(first[2] + AWAY, task)
put(-(now + tonumber(ARGV[2])), 'g:' .. task)
return task
