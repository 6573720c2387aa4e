-- Lengthens claims: the heartbeat of a worker, for all that it runs.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  claim lease, in ms
-- ARGV[4..] id, key, attempts as they were told, of each claim
-- returns  for each claim 1 when the caller still holds it, else 0
-- #include common.lua
local lease = tonumber(ARGV[3])
local ids, reply, held, ends = {}, {}, {}, {}
for i = 4, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
end
for i, state in ipairs(call('HMGET', r, unpack(ids))) do
  local id, key, tries = unpack(ARGV, 3 * i + 1, 3 * i + 3)
  reply[i] = 0
  if state == 'r' .. tries or state == 'R' .. tries then
    reply[i] = 1
    held[#held + 1] = id .. ' ' .. key
    ends[2 * #held - 1], ends[2 * #held] = now + lease, held[#held]
  end
end
batch('ZREM', w, held)
batch('ZADD', w, ends)
if #held > 0 then
  live(lease + retention, w)
end
flush()
return reply
