-- Reserves the key for parked work: until the reservation ends, only a call for such work is granted it.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  ''
-- ARGV[2]  how long, in ms; a reservation is never shortened
-- ARGV[3]  see late.lua
-- returns  the reservation's stamp; 0 if the record is foreign
-- #include call.lua
-- #include late.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return 0
end
sweep()
reserve(tonumber(ARGV[2]))
stamp = math.max(stamp + 1, next_fence()) -- it is made anew, with a new stamp: an Unreserve that is in flight leaves it
save()
return stamp
