-- Records where a piece of work is parked, unless it is finished.
--
-- KEYS[1]  the record, as in begin.lua
-- ARGV[1]  fingerprint
-- ARGV[2]  the record's TTL, in ms
-- ARGV[3]  ticket
-- ARGV[4]  queue
-- ARGV[5]  until when the ticket is valid, in ms
-- returns  {'ok'} or {'mismatch'}
local was = redis.call('HMGET', KEYS[1], 'fingerprint', 'outcome')
if was[1] and was[1] ~= ARGV[1] then
  return {'mismatch'}
end
if not was[2] then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'ticket', ARGV[3], 'queue', ARGV[4], 'until', ARGV[5])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {'ok'}
