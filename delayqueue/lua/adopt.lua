-- Stores messages that come from a closed partition, each unless its id is known here. Bounds do
-- not count: it was stored long ago.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', what its record has from the lengths on to the payload, payload,
--           when it was enqueued and its not_after, in ms, its attempts, as they are stored
-- returns   for each 1 when it is stored here, 0 when this partition is closed too
-- #include common.lua
-- #include admit.lua
local function is_known(id)
  for i = 9, 16 do
    if (i == 9 or i > 11) and call('HGET', KEYS[i], id) then
      return true
    end
  end
  return call('HGET', m, id)
end

local told = {}
for i = 5, #ARGV, 7 do
  local id, key = ARGV[i], ARGV[i + 1]
  local known = is_known(id)
  if not known and not closed then
    full(key)
    admit(id, key, '-', tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 2], ARGV[i + 3])
    file()
    call('HSET', r, id, ARGV[i + 6])
    live(0, r)
  end
  told[#told + 1] = (known or not closed) and 1 or 0
end
flush()
return told
