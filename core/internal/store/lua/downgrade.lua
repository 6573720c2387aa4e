-- Makes an exclusive holder a shared one, with nobody in between, and serves the waiters
-- at the head of the queue that may hold the key together with it.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  the holder's token
-- ARGV[2]  its token from now on
-- ARGV[3]  the greatest fence that was used under its grant
-- returns  1 when the caller holds the key under the new token, 0 when it holds it
--          under neither
-- #include call.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
local rekeyed = ARGV[2]

if foreign() then
  return 0
elseif not mine then -- the reply to an earlier call may have been lost
  local holder = redis.call('HMGET', key, 'h:' .. rekeyed)[1]
  return holder and ends(holder) > now and 1 or 0
end

local deadline, its, what = string.match(mine, '^(%d+) (%d+)(.*)$')
fence = math.max(tonumber(ARGV[3]), tonumber(its)) -- the rest of the block is unused
redis.call('HDEL', key, 'h:' .. token)
write('h:' .. rekeyed, string.format('%s %s-%.0f%s', deadline, its, fence, what))
last, needed_until = rekeyed, ends(mine)
serve('')
save()
return 1
