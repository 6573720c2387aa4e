-- Enqueues a clone that inherits the unique lock of its task: runs asynq's script for
-- unique tasks with the lock out of its way, and gives the lock the time that it had.
--
-- KEYS, ARGV   those of asynq's script, whose KEYS[1] is the unique lock
-- last ARGV    the task's id
-- Returns what asynq's script does: 1 enqueued, 0 the clone's id is taken, -1 the lock
-- is not the task's. But for 1, nothing has changed.

local task = ARGV[#ARGV]
if redis.call('GET', KEYS[1]) ~= task then
	return -1
end
local left = redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])

local function enqueue()
-- ASYNQ
end

local enqueued = enqueue()
if enqueued ~= 1 then
	redis.call('SET', KEYS[1], task)
end
if left > 0 then
	redis.call('PEXPIRE', KEYS[1], left)
end
return enqueued
