-- Lengthens claims: the heartbeat of a worker, for all messages that it runs.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  claim lease, in ms
-- ARGV[4]  1 when the messages are about to run alone in their worker, else 0
-- ARGV[5..] for each claim: id, key, attempts as they were sent to the worker
-- returns  for each claim 1 when the caller still holds it, else 0
-- #include common.lua
local lease, alone, replies = tonumber(ARGV[3]), ARGV[4] == '1', {}
redis.call('HDEL', COUNTS, '')
for i = 5, #ARGV, 3 do
  local id, key, tries = unpack(ARGV, i, i + 2)
  local state = redis.call('HGET', ATTEMPTS, id)
  local held = is_held(state, tries)
  if held then
    add(RUNNING, id .. ' ' .. key, text(now + lease))
    if alone then
      add(ATTEMPTS, id, state:sub(1, 1) .. 'alone!' .. state:sub(8))
    end
    if bodies[id] then
      keep(bodies[id], lease + SLACK, 0)
    end
  end
  replies[#replies + 1] = held and 1 or 0
end
span = lease + retention
flush()
return replies
