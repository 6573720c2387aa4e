-- Makes room for a message, by ending messages that are too old; after admit.lua.
-- #include finish.lua
-- #include ended.lua
local steps = 2 * STEPS -- how many messages are looked at, whether they are too old

local function expire(id)
  local rec = steps > 0 and redis.call('HGET', MESSAGES, id)
  steps = steps - 1
  if rec and too_old(rec) and not is_running(redis.call('HGET', ATTEMPTS, id)) then
    discard(id, key_of(rec), rec, 'e')
  end
end

-- Why there is no room for a message of a key; nil if there is. What is full of messages that are too old is not full.
local function refusal(key, principal, size)
  local why = full(key, principal, 1, size)
  if not why or steps <= 0 then
    return why
  end
  apply()
  for _, place in ipairs(key ~= '' and fifo(key, STEPS) or {}) do
    expire(id_at(place, key))
  end
  tidy()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', WAITING, '-inf', NOW, 'LIMIT', '0', STEPS)) do
    expire((split(member)))
  end
  tidy()
  all, lengths, headed = redis.call('HLEN', MESSAGES), {}, {}
  read_rings()
  return full(key, principal, 1, size)
end
