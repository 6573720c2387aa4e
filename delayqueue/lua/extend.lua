-- Lengthens claims: the heartbeat of a worker, for all that it runs.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  claim lease, in ms
-- ARGV[4..] id, key, token of each claim
-- returns  for each claim 1 when the caller still holds it, else 0
-- #include common.lua
local lease = tonumber(ARGV[3])
local reply = {}
for i = 4, #ARGV, 3 do
  local id, key, token = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local m = load(id, key)
  if m and owned(id, m, token) then
    hold(id .. ' ' .. key, m, lease)
    if now + lease > m.not_after then
      keep(record(id), life(m, lease))
      if key ~= '' then
        outlive(line(key), life(m, lease))
      end
    end
    reply[#reply + 1] = 1
  else
    reply[#reply + 1] = 0
  end
end
flush()
return reply
