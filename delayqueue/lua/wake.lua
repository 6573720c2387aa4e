-- Makes the heads of keys due that wait for nothing but their key, because it
-- was announced to be free. A head that runs is marked: settle.lua looks.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  '1' to make them due, '0' to look only
-- ARGV[4..] keys
-- returns  for each key 0 when no message of it could run now: it has none, or the head waits for its time, or
--          the queue is paused; 2 when its head was made due; 3 when a dead letter halts its messages; else 1
-- #include common.lua
local wake, idle = ARGV[3] == '1', paused_until() > now
call('HDEL', r, '')

-- 1 when a message of the key waits for newer ones to replace it: a fresh call would be undone by it.
local function quiet(key)
  return #call('ZRANGEBYLEX', f, '[' .. key .. '\n\127', '(' .. key .. '\11', 'LIMIT', '0', '1')
end

local function look(key)
  local place, halt = line(key, '1')[1], call('HGET', h, key)
  if halt then
    return sub(halt, 1, 1) == 'k' and 1 or 3
  elseif not place then
    return idle and 0 or quiet(key)
  end
  local id = id_at(place, key)
  local member, state = id .. ' ' .. key, call('HGET', r, id) or ''
  local flag, at = sub(state, 1, 1), tonumber(call('ZSCORE', z, member) or '')
  if wake and flag == 'w' then
    call('HSET', r, id, '-' .. sub(state, 2))
    look_at(member, now)
  elseif wake and flag == 'r' then
    call('HSET', r, id, 'R' .. sub(state, 2))
  end
  if flag == 'r' or flag == 'R' then
    return 1
  elseif idle or flag ~= 'w' and (at or now + 1) > now then
    return idle and 0 or quiet(key)
  end
  return wake and flag == 'w' and 2 or 1
end

local found = {}
for i = 4, #ARGV do
  found[#found + 1] = look(ARGV[i])
end
flush()
return found
