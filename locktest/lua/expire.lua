-- Ends every lease of a key, as if its time were up.
--
-- KEYS[1]  the key's record, as in core/internal/store/lua/record.lua
-- returns  how many leases it ended
local key = KEYS[1]
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
if redis.call('MGET', key)[1] then -- a thin record lasts as long as its lease
  return redis.call('DEL', key)
end
local ended = 0
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local ends, rest = string.match(all[i + 1], '^(%d+)(.*)$')
  if string.sub(all[i], 1, 2) == 'h:' and ends and tonumber(ends) > now then
    redis.call('HSET', key, all[i], string.format('%d%s', now, rest))
    ended = ended + 1
  end
end
if ended > 0 then
  redis.call('HSET', key, 'next', now) -- a lower bound of the ends
end
return ended
