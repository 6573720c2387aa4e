-- Finds what a newer message replaces; after ended.lua.

-- The message that a newer one replaces, if no handler was given it yet.
local function replaceable(slot, key)
  apply()
  local id = redis.call('HGET', USES, slot)
  local rec, state = id and redis.call('HGET', MESSAGES, id), id and redis.call('HGET', ATTEMPTS, id) or UNTRIED
  local fresh = rec and rec:match('^1[qc]') and state:match('^[w-]......0 %d+ 0 0 ')
  if fresh and not too_old(rec) and redis.call('HEXISTS', DEAD_LETTERS, id) == 0 then
    for _, place in ipairs({rec:sub(4, 19), '~', '\127'}) do
      if redis.call('ZSCORE', FIFOS, key .. '\n' .. place .. id) then
        local t = read(id, rec)
        return {
          id = id, rec = rec, state = state, place = place, number = t.number,
          size = message_size(t.n, id, key, t.principal, slot) + cause_size(state:sub(2)),
          due = tonumber(redis.call('ZSCORE', WAITING, id .. ' ' .. key) or ''),
        }
      end
    end
  end
end
