-- Where a message is in its life, for those scripts that are given its id alone.
local STATES = {d = 'done', x = 'dead', e = 'expired', c = 'cancelled'}

-- Answers the state of a message, or ''; what it is, if it is queued or running, or else how it ended.
local function state_of(id)
  for i = 9, 16 do
    local ending = (i == 9 or i > 11) and call('HGET', KEYS[i], id)
    if ending then
      return STATES[string.sub(ending, 1, 1)] or '', ending
    end
  end
  local msg = find(id)
  if msg and not is_running(msg) and msg.not_after <= now then
    give_up(msg, 'e')
    return 'expired'
  end
  return msg and (is_running(msg) and 'running' or 'queued') or '', msg
end
