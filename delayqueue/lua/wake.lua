-- Makes the heads of keys due that wait for nothing but their key, because it
-- was announced to be free. A head that runs is marked: settle.lua looks.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  '1' to make them due, '0' to look only
-- ARGV[4..] keys
-- returns  for each key 0 when no message of it could run now: it has none, or the head waits for its time, or
--          the queue is paused; 2 when its head was made due, else 1
-- #include common.lua
local idle = paused > now
call('HDEL', r, '')
local found = {}
for i = 4, #ARGV do
  local key = ARGV[i]
  local place = line(key, '1')[1]
  local id = place and id_at(place, key)
  local state = id and call('HGET', r, id) or ''
  local flag = string.sub(state, 1, 1)
  local at = id and call('ZSCORE', z, id .. ' ' .. key)
  local answer = (flag == 'r' or flag == 'R' or flag == 'w' or at and score_of(at) <= now) and 1 or 0
  if ARGV[3] == '1' and flag == 'r' then
    call('HSET', r, id, 'R' .. string.sub(state, 2))
  elseif ARGV[3] == '1' and flag == 'w' then
    call('HSET', r, id, '-' .. string.sub(state, 2))
    look_at(id .. ' ' .. key, now)
    answer = 2
  end
  found[#found + 1] = idle and flag ~= 'r' and flag ~= 'R' and 0 or answer
end
flush()
return found
