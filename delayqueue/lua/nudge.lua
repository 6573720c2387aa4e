-- Makes the heads of keys due that wait for nothing but their key, because it
-- was announced to be free. A head that runs is marked: settle.lua looks.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3..] keys
-- returns  for each key 0 when it has no messages, 2 when its head was made due, else 1
-- #include common.lua
local found = {}
for i = 3, #ARGV do
  local key = ARGV[i]
  local id = redis.pcall('LINDEX', line(key), 0)
  local m = type(id) == 'string' and load(id, key)
  local waits = m and m.wait
  found[#found + 1] = id and 1 or 0
  if waits then
    redis.call('HDEL', record(id), 'wait')
  end
  if m and m.state == 'running' then
    redis.call('HSET', record(id), 'nudged', 1)
  elseif waits and m.state == 'queued' then
    redis.call('HSET', record(id), 'due', now)
    make_due(id .. ' ' .. key, now, life(m))
    found[#found] = 2
  end
end
flush()
return found
