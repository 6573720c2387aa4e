-- Reserves the key for parked work: until the reservation ends, only a call for such work is granted it.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  ''
-- ARGV[2]  how long, in ms; a reservation is never shortened
-- ARGV[3]  see late.lua
-- The others can be absent:
-- ARGV[4]  id of the caller's locker, if a message is to tell it when nobody holds the key; else ''
-- ARGV[5]  the latest fence that the caller knows of
-- returns  {the reservation's stamp, 0 if the record is foreign; 1 if the key is held and has that fence still, else 0}
-- #include call.lua
-- #include late.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return {0, 0}
end
sweep()
local held_still = held > 0 and fence == tonumber(ARGV[5] or 0)
watch_for(held_still and ARGV[4] or '')
reserve(tonumber(ARGV[2]))
stamp = math.max(stamp + 1, next_fence()) -- it is made anew, with a new stamp: an Unreserve that is in flight leaves it
save()
return {stamp, held_still and 1 or 0}
