-- Takes a lock, or waits for it: one can.
--
-- KEYS[1]  the lock
-- KEYS[2]  who waits for it
-- ARGV[1]  the caller, and its channel
-- ARGV[2]  milliseconds from now
-- returns  1 when it was taken, 0 when the caller waits
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 0
