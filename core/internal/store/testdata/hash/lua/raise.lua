-- Raises the fence of a holder, which others may have been given in parts: each node
-- of a quorum has granted its own, and the greatest counts.
--
-- KEYS[1]  the key's record, as in record.lua
-- ARGV[1]  the holder's token
-- ARGV[2]  the fence that it is to have
-- returns  the fence that it has now: greater than was asked for if somebody else
--          has had that one; 0 when the caller does not hold the key
-- #include constants.lua
-- #include format.lua
local key, token, want = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local record = redis.pcall('HMGET', key, 'fence', 'h:' .. token, 'v')
if record.err then
  return newer(key) and 0 or record
end
local fence = tonumber(record[1] or 0) or 0
local deadline, its, what = string.match(record[2] or '', '^(%d+) (%d+)(.*)$')
if record[3] or not deadline or tonumber(deadline) <= now then
  return 0
end
its = tonumber(its)
if its == want then
  return its
end
local spent
if string.sub(token, 1, 2) == '1:' then -- the stored fence is its own
  its = math.max(its, want)
  spent = its + BLOCK - 1
else
  its = math.max(fence + 1, want)
  spent = its
end
-- The record must not vanish before the clock has passed its fence. PEXPIRE comes
-- first, since Redis runs it even when its memory is full.
redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), math.floor(spent / 1000) + 1 - now, LEAST))
redis.call('HSET', key, 'fence', string.format('%.0f', its),
  'h:' .. token, string.format('%s %.0f%s', deadline, its, what))
return its
