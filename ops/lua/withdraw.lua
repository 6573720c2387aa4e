-- Forgets a process that ends.
--
-- KEYS[1]  what the process tells
-- KEYS[2]  the index
-- ARGV[1]  id
redis.call('DEL', KEYS[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
