-- Ends a key's reservation, and serves the queue.
--
-- ARGV[1]  ''
-- ARGV[2]  a fence: a reservation that was made after its grant stays
-- returns  1 when the key is not reserved now, 0 when it is
-- #include call.lua
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return 1
end
if made > tonumber(ARGV[2]) then
  return 0
end
if exists then
  reserved = 0
  sweep()
  serve('')
  save()
end
return 1
