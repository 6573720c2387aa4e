-- Records that a piece of work is to run now, unless it is finished, or its key is bound to
-- another request. The caller holds the work's lock exclusively: a holder that began it
-- before, and did not finish, has lost that lock.
--
-- It can go along with the lock's acquire: that took the key if its record is a thin one, of that token: see core's acquire.lua.
--
-- KEYS[1]  the record: a HASH with a TTL
--   fingerprint  a hash of the request
--   fence        of the lease under which the work was last begun
--   outcome      its result
--   ticket, queue, until  where it is parked, and until when the ticket is valid, in ms
-- KEYS[2]  if it goes along: the lock's record
-- ARGV[1]  fingerprint
-- ARGV[2]  the caller's fence; if it goes along: its token
-- ARGV[3]  the record's TTL, in ms
-- returns  {'ok', '', fence} to run it, {'ok', outcome, fence} if it is finished, {'mismatch'} or {'stale_fence'}; {'later'} if the lock is not
--          known to be the caller's
local fence = ARGV[2]
if KEYS[2] then
  local thin = 'pk2 ' .. ARGV[2] .. ' '
  local lock = redis.call('MGET', KEYS[2])[1]
  fence = lock and string.sub(lock, 1, #thin) == thin and string.match(lock, '^%d+', #thin + 1)
  if not fence then
    return {'later'}
  end
end
local was = redis.call('HMGET', KEYS[1], 'fingerprint', 'fence', 'outcome')
if was[1] and was[1] ~= ARGV[1] then
  return {'mismatch'}
end
if was[3] then
  return {'ok', was[3], fence}
end
if was[2] and tonumber(was[2]) > tonumber(fence) then
  return {'stale_fence'}
end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'fence', fence)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'ok', '', fence}
