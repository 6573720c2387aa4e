-- Closes a partition, unless it is closed: no new message is stored any more. Reports
-- what is left.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  the generation that follows: <generation>:<partitions>
-- ARGV[4..] keys
-- returns  {for how long it is paused, in ms; how many of its keys are left that hold messages, or remember
--           them; how many messages are queued or run and how many keys are halted; for each key 2 if it is halted, 1 if it
--           has messages that are not delayed, else 0}
-- #include common.lua
if not closed then
  add(c, 'closed', next_seq() .. ' ' .. ARGV[3])
end
local left = {
  math.max(0, paused_until - now),
  redis.call('EXISTS', m, w, x, y, unpack(KEYS, RESULTS, GIVEN + BUCKETS - 1)),
  redis.call('HLEN', m) - redis.call('ZCARD', x) + redis.call('HLEN', h),
}
for i = 4, #ARGV do
  left[i] = redis.call('HEXISTS', h, ARGV[i]) == 1 and 2 or #fifo(ARGV[i], '1')
end
flush()
keep(c, LASTS, 0, endless)
return left
