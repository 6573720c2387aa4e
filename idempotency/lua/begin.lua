-- Records that a work is to run now, unless it is finished, or its key is bound to
-- another one. Called by the exclusive holder of the work's lock: whoever began it
-- before, and did not finish, has lost that lock.
--
-- KEYS[1]  the record: a HASH with a TTL
--   fingerprint  of what was asked for
--   fence        of the lease under which it was begun last
--   outcome      what came of it
--   ticket, queue, until  where it is parked, and until when that is good, in ms
-- ARGV[1]  fingerprint
-- ARGV[2]  the caller's fence
-- ARGV[3]  how long the record is remembered, in ms
-- returns  {'ok'} to run it, {'ok', outcome}, {'differs'} or {'overtaken'}
local was = redis.call('HMGET', KEYS[1], 'fingerprint', 'fence', 'outcome')
if was[1] and was[1] ~= ARGV[1] then
  return {'differs'}
end
if was[3] then
  return {'ok', was[3]}
end
if was[2] and tonumber(was[2]) > tonumber(ARGV[2]) then
  return {'overtaken'}
end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'fence', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'ok'}
