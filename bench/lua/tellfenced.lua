-- Passes a lock on to the next with a new fence, and tells it, if the caller still has it.
--
-- KEYS[1]  the lock: who has it, and the fence
-- KEYS[2]  who waits for it
-- ARGV[1]  the caller
-- returns  1 when it was the caller's
local time = redis.call('TIME')
local holder, last = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if holder ~= ARGV[1] then
  return 0
end
local next = redis.call('GETDEL', KEYS[2])
if next then
  local fence = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
  redis.call('SET', KEYS[1], next .. ' ' .. fence, 'PX', 1000)
  redis.call('PUBLISH', next, fence .. ' ' .. KEYS[1])
else
  redis.call('DEL', KEYS[1])
end
return 1
