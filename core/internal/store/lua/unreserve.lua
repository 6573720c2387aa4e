-- Ends a key's reservation, and serves the queue.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  ''
-- ARGV[2]  a stamp, or the fence of a grant: a reservation with a greater stamp stays
-- returns  1 when the key is not reserved now, 0 when it is
-- #include call.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return 1
end
if stamp > tonumber(ARGV[2]) then
  return 0
end
if exists then
  reserved = 0
  sweep()
  serve('')
  save()
end
return 1
