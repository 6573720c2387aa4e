-- Gives back what is to be run later; in settle.lua.
local SLOT = 50 -- ms: what is handed back becomes due together, so that a claim brings many

for _, n in ipairs(back) do
  local at = FIRST + SIZE * (n - 1)
  local id, key, principal, _, _, how, slot, _, tries, till = unpack(ARGV, at, at + SIZE - 1)
  local delay, not_after = till:match('^(%d+) (%d+)$')
  local next = now + delay
  if how == 'h' then
    next = math.max(now, next - next % SLOT)
  elseif how == 'bw' and states[n]:sub(1, 1) == 'R' then
    next = now -- the key was freed since the conflict
  elseif how == 'r' then
    count('retried')
  end
  note_tries(id, key, principal, how == 'bw' and 'w' or '-', tries, states[n]:sub(2))
  look_at(id .. ' ' .. key, math.min(next, tonumber(not_after)))
  if slot ~= '' and tries:match('^......0 %d+ 0 0 ') then -- no handler was given it
    local by = redis.call('HGET', USES, slot)
    if by and by ~= id and redis.call('HEXISTS', MESSAGES, by) == 1 then -- that one has come since, and is to run in place of this one
      apply()
      discard(id, key, redis.call('HGET', MESSAGES, id) or '', 's', by)
    elseif by ~= id then -- it ended in another way: the next one replaces this one again
      add(USES, slot, id)
    end
  end
end
tidy()
