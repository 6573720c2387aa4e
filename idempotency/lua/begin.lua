-- Records that a piece of work is to run now, unless it is finished, or its key is bound to
-- another request. The caller holds the work's lock exclusively: a holder that began it
-- before, and did not finish, has lost that lock.
--
-- KEYS[1]  the record: a HASH with a TTL
--   fingerprint  a hash of the request
--   fence        of the lease under which the work was last begun
--   outcome      its result
--   ticket, queue, until  where it is parked, and until when the ticket is valid, in ms
-- ARGV[1]  fingerprint
-- ARGV[2]  the caller's fence
-- ARGV[3]  the record's TTL, in ms
-- returns  {'ok'} to run it, {'ok', outcome} if it is finished, {'mismatch'} or {'stale_fence'}
local was = redis.call('HMGET', KEYS[1], 'fingerprint', 'fence', 'outcome')
if was[1] and was[1] ~= ARGV[1] then
  return {'mismatch'}
end
if was[3] then
  return {'ok', was[3]}
end
if was[2] and tonumber(was[2]) > tonumber(ARGV[2]) then
  return {'stale_fence'}
end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'fence', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'ok'}
