-- Lengthens the lease, if the caller still owns it. Never shortens it, and
-- never creates it anew.
--
-- Only PEXPIRE, which Redis runs even when its memory is full: a holder does
-- not lose its key because somebody else filled the server.
--
-- KEYS[1]  the key's record
-- ARGV[1]  owner token of the caller
-- ARGV[2]  what is to be left of the lease, in ms
-- returns  1 when the caller owns the key, 0 when it does not
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
