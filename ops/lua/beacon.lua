-- Tells of a process, forgets those that are gone, and answers what is watched.
--
-- KEYS[1]  what the process tells
-- KEYS[2]  the index: the ids of all processes, by when they are gone, in ms
-- KEYS[3]  what is watched, by until when, in ms
-- ARGV[1]  id
-- ARGV[2]  for how long it is told, in ms
-- ARGV[3]  what is told
-- returns  {watch, for how many ms more, …}
local INDEX = 300000 -- ms that the index outlives its last process: longer than any entry
local WATCHES = 16
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], INDEX)
local watches = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, WATCHES)
for i = 2, #watches, 2 do
  watches[i] = watches[i] - now
end
return watches
