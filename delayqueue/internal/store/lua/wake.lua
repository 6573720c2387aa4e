-- Makes the heads of keys due that wait only for their key, because a message said that it is free.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  '1' to make them due, '0' to change nothing
-- ARGV[4..] keys
-- returns  for each key what look() finds; 1 for 2 if nothing is changed
-- #include common.lua
-- #include look.lua
redis.call('HDEL', COUNTS, '')

local found = {}
for i = 4, #ARGV do
  local its, id, state = look(ARGV[i])
  if ARGV[3] == '1' then
    free(ARGV[i], id, state)
  end
  found[#found + 1] = ARGV[3] == '1' and its or its == 2 and 1 or its
end
flush()
return found
