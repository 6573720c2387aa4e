-- Makes the heads of keys due that wait only for their key, because a message
-- said that it is free. A head that runs is marked, for settle.lua.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  '1' to make them due, '0' to change nothing
-- ARGV[4..] keys
-- returns  for each key 0 when no message of it could run now: it has none, or the head waits for its time, or
--          the queue is paused; 2 when its head was made due; 3 when a dead letter halts its messages; else 1
-- #include common.lua
local wake, idle = ARGV[3] == '1', paused_until > now
redis.call('HDEL', COUNTS, '')

-- 1 when a message of the key waits for newer ones to replace it: a fresh call would be undone by it.
local function quiet(key)
  return #redis.call('ZRANGEBYLEX', FIFOS, '[' .. key .. '\n\127', '(' .. key .. '\11', 'LIMIT', '0', '1')
end

local function look(key)
  local place, halt = fifo(key, '1')[1], redis.call('HGET', HALTS, key)
  if halt then
    return halt:sub(1, 1) == 'k' and 1 or 3
  elseif not place then
    return idle and 0 or quiet(key)
  end
  local id = id_at(place, key)
  local member, state = id .. ' ' .. key, redis.call('HGET', ATTEMPTS, id) or ''
  local flag, at = state:sub(1, 1), tonumber(redis.call('ZSCORE', WAITING, member) or '')
  if wake and flag == 'w' then
    add(ATTEMPTS, id, '-' .. state:sub(2))
    look_at(member, now)
  elseif wake and flag == 'r' then
    add(ATTEMPTS, id, 'R' .. state:sub(2))
  end
  if is_running(state) then
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
