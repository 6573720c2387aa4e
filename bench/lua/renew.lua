-- Lengthens a lock that was taken with SET NX, if its taker still has it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the taker's token
-- ARGV[2]  milliseconds from now
-- returns  1 when it was lengthened, 0 when it was not the taker's
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
