-- Admits calls of one process beside its holder, with which they waited when it was granted
-- the key: shared ones past the queue, others only if nobody waits there. If the holder is gone
-- by now they are like calls that have just come.
--
-- ARGV[1]  the holder's token
-- ARGV[2]  and so on, for each call: its token, the length of its lease in ms, and
--          what it is, for people; no spaces
-- returns  for each call its fence, or 0 if it is not admitted
-- #include record.lua
-- #include queue.lua
local fields, fences = {}, {}
for i = 2, #ARGV, 3 do
  fields[#fields + 1] = 'h:' .. ARGV[i]
end
if foreign() then
  for i = 1, #fields do
    fences[i] = 0
  end
  return fences
end
local known = redis.call('HMGET', key, unpack(fields))
sweep()
serve('')
for i = 1, #fields do
  local e = ARGV[3 * i - 1]
  if known[i] and ends(known[i]) > now then -- the reply to an earlier call was lost
    fences[i] = tonumber(string.match(known[i], '^%d+ (%d+)'))
  elseif reserved == 0 and fits(limit(e)) and (queue == '' or mine and limit(e) == 0) then
    fences[i] = grant(e, tonumber(ARGV[3 * i]), ARGV[3 * i + 1])
  else
    fences[i] = 0
  end
end
save()
return fences
