-- Takes a lock that has a fence, or waits for it: one can.
--
-- KEYS[1]  the lock: who has it, and the fence
-- KEYS[2]  who waits for it
-- ARGV[1]  the caller, and its channel
-- ARGV[2]  milliseconds from now
-- returns  1 when it was taken, 0 when the caller waits
local time = redis.call('TIME')
local fence = time[1] .. string.sub('00000' .. time[2], -6)
if redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. fence, 'NX', 'PX', ARGV[2]) then
  return 1
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 0
