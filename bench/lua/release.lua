-- Deletes a lock that was taken with SET NX, if its taker still has it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the taker's token
-- returns  1 when it was deleted, 0 when it was not the taker's
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
