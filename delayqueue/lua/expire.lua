-- What admits and takes messages also ends those that are too old.
local steps = 2 * STEPS -- how many it looks at

-- Ends those of a key's first messages that are too old to be started. Answers how many.
local function expire_line(key)
  local expired = 0
  for _, place in ipairs(line(key, math.max(0, steps))) do
    local msg = find(id_at(place, key))
    steps = steps - 1
    if msg and not is_running(msg) and msg.not_after <= now then
      give_up(msg, 'e')
      expired = expired + 1
    end
  end
  return expired
end
