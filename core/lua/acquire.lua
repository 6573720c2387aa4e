-- Takes the key if nobody holds it. Idempotent for one owner token: a second
-- run with the same token, after a lost reply, answers the same grant.
--
-- KEYS[1]  the key's record: HASH {owner, fence, waiters}; it expires when the lease does
-- ARGV[1]  owner token of the caller
-- ARGV[2]  length of the lease, in ms
-- ARGV[3]  id of the caller's locker if it is to be woken by the release, or ''
-- returns  the fence, greater than 0, when granted
--          when held by somebody else, minus the ms left of the holder's lease
local record = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'waiters')
local owner, stored, waiters = record[1], record[2], record[3] or ''

if owner == ARGV[1] then
  -- The caller counts from its last request; the grant may be of an earlier one
  -- that was delivered late.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return tonumber(stored)
end

if owner then
  if ARGV[3] ~= '' and not string.find(waiters, ARGV[3], 1, true) then
    -- pcall: under maxmemory this write is refused, and the conflict is still the answer.
    redis.pcall('HSET', KEYS[1], 'waiters', waiters .. ARGV[3] .. ' ')
  end
  return -math.max(redis.call('PTTL', KEYS[1]), 0)
end

-- The server's clock in microseconds makes the fence grow even when the data
-- is gone; the stored fence makes it grow even when the clock was set back.
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
if stored then
  fence = math.max((tonumber(stored) or 0) + 1, fence)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', string.format('%.0f', fence))
if not stored or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return fence
