-- Passes a lock on to the next, and tells it.
--
-- KEYS[1]  the lock
-- KEYS[2]  who waits for it
-- returns  1
local next = redis.call('GETDEL', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', 1000)
  redis.call('PUBLISH', next, KEYS[1])
else
  redis.call('DEL', KEYS[1])
end
return 1
