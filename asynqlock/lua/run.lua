-- Makes a task pending that was put aside: runs asynq's script for that, which would also run a task
-- again that is done, or was archived.
--
-- KEYS, ARGV  those of asynq's script, whose KEYS[1] is the task
-- returns     what asynq's script does: 1 pending now, 0 not there, -1 active, -2 pending already
--             -3 it is in another state: nothing has changed
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'retry' and state ~= 'scheduled' and state ~= 'active' and state ~= 'pending' and redis.call('EXISTS', KEYS[1]) == 1 then
  return -3
end

local function run()
-- ASYNQ
end

return run()
