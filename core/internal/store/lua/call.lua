-- The beginning of every script on one key: its arguments, and the time.
--
-- KEYS[1]  the key's record; see record.lua
-- ARGV[1]  the caller's owner token: LIMIT:LOCKER.SECRET. LIMIT is how many may hold the
--          key together with it: 1 is exclusive, 0 is without limit
local key, token = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
-- #include constants.lua
