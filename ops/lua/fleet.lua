-- Tells which processes there are.
--
-- KEYS[1]  the index
-- ARGV[1]  how many are returned, at most
-- returns  {now in ms, how many there are, id, when it is gone in ms, …}: the latest reports first
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '(' .. now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
table.insert(reply, 1, redis.call('ZCOUNT', KEYS[1], '(' .. now, '+inf'))
table.insert(reply, 1, now)
return reply
