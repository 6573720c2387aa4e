-- Claims messages that are due: they are due again when the lease has passed.
--
-- KEYS[1]  ZSET of ids, by when they are due
-- KEYS[2]  HASH of payloads
-- ARGV[1]  how many at most
-- ARGV[2]  the lease, in ms
-- returns  ids and their payloads, or nothing
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #ids == 0 then
  return {}
end
local due = {}
for _, id in ipairs(ids) do
  due[#due + 1] = now + ARGV[2]
  due[#due + 1] = id
end
redis.call('ZADD', KEYS[1], unpack(due))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
