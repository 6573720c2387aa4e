-- Lengthens claims: the heartbeat of a worker, for all that it runs.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  claim lease, in ms
-- ARGV[4..] id, key, attempts as they were told, without the first letter, of each claim
-- returns  for each claim 1 when the caller still holds it, else 0
-- #include common.lua
local lease = tonumber(ARGV[3])
local ids, reply, held, ends = {}, {}, {}, {}
for i = 4, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
end
for i, state in ipairs(call('HMGET', r, unpack(ids))) do
  local at = 1 + 3 * i
  reply[i] = state and string.match(state, '^[rR](.*)$') == ARGV[at + 2] and 1 or 0
  if reply[i] == 1 then
    held[#held + 1] = ARGV[at] .. ' ' .. ARGV[at + 1]
    ends[#ends + 1] = now + lease
    ends[#ends + 1] = held[#held]
  end
end
if #held > 0 then
  call('ZREM', w, unpack(held))
  call('ZADD', w, unpack(ends))
  live(lease + retention, w)
end
flush()
return reply
