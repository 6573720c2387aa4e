-- Looks at keys that may be free, for wake.lua and claim.lua; after common.lua.

-- 1 when a message of the key waits for newer ones to replace it: a fresh call would be undone by it.
local function quiet(key)
  return #redis.call('ZRANGEBYLEX', FIFOS, '[' .. key .. '\n\127', '(' .. key .. '\11', 'LIMIT', '0', '1')
end

-- What there is of a key: 0 when no message of it could run now: it has none, or the head waits for its time, or the
-- queue is paused; 2 when its head waits for nothing but the key; 3 when a dead letter halts its messages; else 1. Then the
-- head's id, its attempts, when it is looked at, and the first places.
local function look(key)
  local places, halt = fifo(key, '2'), halt_of(key)
  if halt then
    return halt:sub(1, 1) == 'k' and 1 or 3
  elseif not places[1] then
    return paused_until > now and 0 or quiet(key)
  end
  local id = id_at(places[1], key)
  local state, at = redis.call('HGET', ATTEMPTS, id) or '', tonumber(redis.call('ZSCORE', WAITING, id .. ' ' .. key) or '')
  local found = 1
  if state:sub(1, 1) == 'w' then
    found = paused_until > now and 0 or 2
  elseif not is_running(state) and (paused_until > now or (at or now + 1) > now) then
    found = paused_until > now and 0 or quiet(key)
  end
  return found, id, state, at, places
end

-- Makes a key's head due if it waits for nothing but the key. One that runs is marked, for settle.lua.
local function free(key, id, state)
  local flag = state and state:sub(1, 1)
  if flag == 'w' then
    add(ATTEMPTS, id, '-' .. state:sub(2))
    look_at(id .. ' ' .. key, now)
  elseif flag == 'r' then
    add(ATTEMPTS, id, 'R' .. state:sub(2))
  end
end
