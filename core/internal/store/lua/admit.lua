-- Admits calls of one process, the followers, beside its holder, the leader: they waited with it when it was
-- granted the key. Shared ones pass the queue, others are admitted only if it is empty. If the leader has
-- released, all of them are admitted only if the queue is empty.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  the leader's token
-- ARGV[2]  its fence
-- ARGV[3]  see late.lua
-- ARGV[4]  and so on, for each follower: its token, the length of its lease in ms, and
--          its description, for people; no spaces
-- returns  for each follower its fence, or 0 if it is not admitted
-- #include call.lua
-- #include late.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
local fields, fences = {}, {}
for i = 4, #ARGV, 3 do
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
-- A fence is the time of its grant. Long after their leader released, those who asked have left, as far as a fence can tell.
local timely = mine or micros - tonumber(ARGV[2]) < CLAIM * 1000
for i = 1, #fields do
  local e = ARGV[3 * i + 1]
  if known[i] and ends(known[i]) > now then -- the reply to an earlier call was lost
    fences[i] = tonumber(string.match(known[i], '^%d+ (%d+)'))
  elseif timely and reserved == 0 and fits(limit(e)) and (queue == '' or mine and limit(e) == 0) then
    fences[i] = grant(e, tonumber(ARGV[3 * i + 2]), ARGV[3 * i + 3])
  else
    fences[i] = 0
  end
end
save()
return fences
