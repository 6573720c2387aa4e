-- Lengthens claims: the heartbeat of a worker, for all that it runs.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  claim lease, in ms
-- ARGV[4..] id, key, token of each claim
-- returns  for each claim 1 when the caller still holds it, else 0
local lease = tonumber(ARGV[3])
local reply = {}
for i = 4, #ARGV, 3 do
  local id, key, token = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if claimed(id, key, token) == 'held' then
    local life = lease + retention
    keep(record(id), life)
    if key ~= '' then
      keep(line(key), life)
    end
    hold(id .. ' ' .. key, id, now + lease)
    reply[#reply + 1] = 1
  else
    reply[#reply + 1] = 0
  end
end
return reply
