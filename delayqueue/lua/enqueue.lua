-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', what its record has from the lengths on to the payload,
--           payload, delay before it becomes due in ms, its greatest age in ms, p if it is
--           parked because its key is held, else -
-- returns   for each message its not_after in ms when it was stored now, -4 less that when it was stored
--           before, else -1 key full, -2 partition full, -3 the id is taken by junk;
--           and at last for how long no worker has claimed, in ms
-- #include common.lua
-- #include admit.lua
local ENDING = '^' .. string.rep('.', 18) .. '%d+ %d+ %d+ (%w+) (%w+)' -- when it was enqueued, and its age
local codes = {['key full'] = -1, ['queue full'] = -2}

-- When those that are known may be started at last, by their ids.
local ids, known = {}, {}
for i = 5, #ARGV, 7 do
  ids[#ids + 1] = ARGV[i]
end
local records = call('HMGET', m, unpack(ids))
for i, id in ipairs(ids) do
  known[id] = records[i] and (tonumber((select(5, string.match(records[i], RECORD))) or '') or -3) or nil
end
if call('EXISTS', unpack(KEYS, 12, 16)) > 0 then
  for i = 12, 16 do
    for j, ending in ipairs(call('HMGET', KEYS[i], unpack(ids))) do
      if ending then
        local enqueued, age = string.match(ending, ENDING)
        known[ids[j]] = age and tonumber(enqueued, 36) + tonumber(age, 36) or -3
      end
    end
  end
end

local replies = {}
for i = 5, #ARGV, 7 do
  local id, key, delay, age = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
  local why = not known[id] and refusal(key)
  local reply = known[id] and (known[id] < 0 and known[id] or -4 - known[id]) or codes[why]
  if not reply then
    reply, known[id] = now + age, now + age
    local at = now + delay
    if delay > 0 and micros % 1000 > 0 then
      at = at + 1 -- a message is never early
    end
    admit(id, key, ARGV[i + 6], now, now + age, ARGV[i + 2], ARGV[i + 3], delay > 0 and at or nil)
    count('enqueued')
  end
  replies[#replies + 1] = reply
end
file()
local claimed = whole(call('HGET', c, 'claimed'))
if not claimed and counts.enqueued then -- from now on somebody ought to
  call('HSET', c, 'claimed', NOW)
end
replies[#replies + 1] = now - (claimed or now)
flush()
return replies
