-- Raises the fence of a holder on one node of a quorum: each node has granted its own fence, and the
-- greatest counts.
--
-- KEYS[1], ARGV[1]  see call.lua
-- ARGV[2]  the fence that the holder is to have
-- returns  the fence that it has now: a greater one if another grant has had
--          that; 0 when the caller does not hold the key
-- #include call.lua
-- #include record.lua
local want = tonumber(ARGV[2])
record = read(key)
local fence = tonumber(record[1] or 0) or 0
local deadline, its, what = string.match(record[7] or '', '^(%d+) (%d+)(.*)$')
if record[10] or not deadline or tonumber(deadline) <= now then
  return 0
end
its = tonumber(its)
if its == want then
  return its
end
local last_fence
if string.sub(token, 1, 2) == '1:' then -- the stored fence is its own
  its = math.max(its, want)
  last_fence = its + BLOCK - 1
else
  its = math.max(fence + 1, want)
  last_fence = its
end
-- The record must not vanish before the clock has passed its fence. PEXPIRE comes
-- first, since Redis runs it even when its memory is full.
redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), math.floor(last_fence / 1000) + 1 - now, LEAST))
redis.call('HSET', key, 'fence', string.format('%.0f', its),
  'h:' .. token, string.format('%s %.0f%s', deadline, its, what))
return its
