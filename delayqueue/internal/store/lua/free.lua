-- Frees long payloads of messages that have ended. If a message with the id was enqueued anew, the payload is that one's.
--
-- KEYS[1]   MESSAGES, as common.lua has it
-- KEYS[2..] payloads
-- ARGV      the id of each
-- returns   0
for i, rec in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
  if not rec then
    redis.call('UNLINK', KEYS[1 + i])
  end
end
return 0
