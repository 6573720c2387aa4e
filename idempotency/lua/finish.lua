-- Stores the outcome of a piece of work, unless a holder with a greater fence has begun it since.
-- A record that is gone is made anew: no other holder has begun the work since then.
--
-- PEXPIRE comes first, since Redis runs it even when its memory is full, and then lets
-- the script go on: work that was done is not done again because memory is full.
--
-- KEYS[1]  the record, as in begin.lua
-- ARGV[1]  fingerprint
-- ARGV[2]  the fence under which the caller began it
-- ARGV[3]  the record's TTL, in ms
-- ARGV[4]  outcome
-- returns  {'ok'}, {'mismatch'} or {'stale_fence'}
local was = redis.call('HMGET', KEYS[1], 'fingerprint', 'fence')
if was[1] and was[1] ~= ARGV[1] then
  return {'mismatch'}
end
if was[2] and tonumber(was[2]) > tonumber(ARGV[2]) then
  return {'stale_fence'}
end
local there = redis.call('PEXPIRE', KEYS[1], ARGV[3]) == 1
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'fence', ARGV[2], 'outcome', ARGV[4])
if not there then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {'ok'}
