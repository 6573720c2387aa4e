-- Has processes publish what happens to some keys, for a while.
--
-- KEYS[1]  what is watched, by until when, in ms
-- ARGV[1]  the watch
-- ARGV[2]  for how long, in ms
-- ARGV[3]  how many watches there may be
-- returns  1, or 0 if there are too many
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then -- the same: its reply was lost
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
return 1
