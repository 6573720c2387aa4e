-- Frees the key, if the caller owns it, and wakes the lockers that wait for it.
-- Also cancels an acquire whose reply was lost.
--
-- KEYS[1]  the key's record
-- ARGV[1]  owner token of the caller
-- ARGV[2]  id of the caller's locker: it wakes its own waiters without Redis
-- ARGV[3]  prefix of the lockers' channels
-- ARGV[4]  the message: the key as its user wrote it
-- returns  1 when the caller owned the key, 0 when it did not
local record = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'waiters')
if record[1] ~= ARGV[1] then
  return 0
end

-- A record must not vanish before the server's clock has passed its fence, or
-- the next fence could be smaller. The clock is ahead, so the record goes at
-- once, unless the clock was set back.
local time = redis.call('TIME')
if tonumber(record[2]) < time[1] * 1000000 + time[2] then
  redis.call('DEL', KEYS[1])
else
  redis.call('HDEL', KEYS[1], 'owner', 'waiters')
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(tonumber(record[2]) / 1000) + 1))
end

for id in string.gmatch(record[3] or '', '%S+') do
  if id ~= ARGV[2] then
    redis.pcall('PUBLISH', ARGV[3] .. id, ARGV[4]) -- channels may be forbidden; the key is free all the same
  end
end
return 1
