-- Reserves the key for parked work: until the reservation ends, only a call for such work is granted it.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  ''
-- ARGV[2]  how long, in ms; a reservation is never shortened
-- returns  the reservation's stamp; 0 if the record is foreign
-- #include call.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return 0
end
sweep()
reserve(tonumber(ARGV[2]))
made = math.max(made + 1, following()) -- it is made anew, with a stamp of its own: an Unreserve that is under way leaves it
save()
return made
