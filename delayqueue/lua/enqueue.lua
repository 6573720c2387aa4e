-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', what its record has from the lengths on to the payload,
--           payload, delay before it becomes due in ms, its greatest age in ms, p if it is
--           parked because its key is held, else -
-- returns   for each message its not_after in ms when it is stored, else
--           -1 key full, -2 partition full, -3 the id is taken by junk
-- #include common.lua
-- #include admit.lua
local CODES = {['key full'] = -1, ['queue full'] = -2}

-- When those that are known may be started at last, by their ids.
local ids, known = {}, {}
for i = 5, #ARGV, 7 do
  ids[#ids + 1] = ARGV[i]
end
for i, rec in ipairs(call('HMGET', m, unpack(ids))) do
  known[ids[i]] = rec and (whole(sub(rec, 33, 45)) or -3) or nil
end
for i = 12, 16 do
  for j, ending in ipairs(call('EXISTS', KEYS[i]) > 0 and call('HMGET', KEYS[i], unpack(ids)) or {}) do
    if ending then
      local base = match(ending, '^[dx]') and 36 or 10
      local enqueued, age = match(ending, '^%d+ %d+ %d+ (%w+) (%w+)', 19)
      known[ids[j]] = age and tonumber(enqueued, base) + tonumber(age, base) or -3
    end
  end
end

local replies = {}
for i = 5, #ARGV, 7 do
  local id, key, text, payload, delay, age, parked = unpack(ARGV, i, i + 6)
  local why = not known[id] and refusal(key)
  if why then
    known[id] = CODES[why]
  elseif not known[id] then
    known[id] = now + age
    local at, body = now + delay, #payload > INLINE
    if tonumber(delay) > 0 and micros % 1000 > 0 then
      at = at + 1 -- a message is never early
    end
    if body then
      append(admitted.b, id, payload)
    end
    admit(id, key, parked, string.format('%.0f%.0f', now, now + age) .. text .. (body and '' or payload), body, tonumber(age), tonumber(delay) > 0 and at)
    count('enqueued')
  end
  replies[#replies + 1] = known[id]
end
file()
flush()
return replies
