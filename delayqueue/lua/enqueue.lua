-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', what its record has from the lengths on to the payload,
--           payload, delay before it becomes due in ms, its greatest age in ms, p if it is
--           parked because its key is held, q if it also may replace the last such one of its key, name and principal, c
--           if it only may that, else -; of q and c perhaps the ms for which others of these can put it off: then the delay is its quiet period
-- returns   for each message its not_after in ms when it was stored now, -5 less that when it was stored
--           before, else -1 key full, -2 partition full, -3 the id is taken by junk, -4 the partition is closed,
--           -5 principal full; and at last for how long no worker has claimed, in ms
-- #include common.lua
-- #include admit.lua
local CODES = {['key full'] = -1, ['queue full'] = -2, closed = -4, ['principal full'] = -5}
local shut = own[7] and 'closed'

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

-- Has a message take the place of another one, or if that is quiet wait on until a time.
local function replace(old, old_rec, state, place, key, slot, id, rec, payload, till)
  local member, due = old .. ' ' .. key, tonumber(call('ZSCORE', z, old .. ' ' .. key) or '')
  if due then
    look_at(id .. ' ' .. key, place == '\127' and till or due)
  end
  batch('HSET', b, payload and {id, payload} or {})
  call('ZADD', f, 0, key .. '\n' .. place .. id)
  call('HSET', m, id, rec)
  call('HSET', u, slot, id)
  if state ~= UNTRIED then
    call('HSET', r, id, match(state, '^.......%d+ %d+ %d+ %d+ ') .. ' ')
  end
  call('ZREM', f, key .. '\n' .. place .. old)
  discard(old, key, old_rec, 's', id)
  live(longest + retention, z, f, b, u)
end

-- The principal at the end of what a record has from the lengths on.
local function principal_of(text)
  local n = sub(text, 7, 9)
  return n == '000' and '' or sub(text, -tonumber(n, 10))
end

local fields, principals = {}, {}
for i = 5, #ARGV, 7 do
  local key, principal = ARGV[i + 1], principal_of(ARGV[i + 2])
  principals[i] = principal
  fields[#fields + 1] = key ~= '' and 'k' .. key or nil
  fields[#fields + 1] = principal ~= '' and 'p' .. principal or nil
end
fetch(fields)

local replies = {}
for i = 5, #ARGV, 7 do
  local id, key, text, payload, delay, age, flags = unpack(ARGV, i, i + 6)
  local parked, most, slot = flags, nil, nil
  if flags ~= '-' and flags ~= 'p' then
    parked, most, slot = sub(flags, 1, 1), tonumber(sub(flags, 2)), 's' .. text
  end
  local reply = known[id] and (known[id] < 0 and known[id] or -5 - known[id]) or CODES[shut]
  if not reply then
    local principal = principals[i]
    local bytes = message_size(45 + #text + #payload)
    local at, body = now + delay, #payload > INLINE and payload
    if tonumber(delay) > 0 and micros % 1000 > 0 then
      at = at + 1 -- a message is never early
    end
    text = string.format('%.0f%.0f', now, now + age) .. text .. (body and '' or payload)
    local old, old_rec, state, place, freed
    if slot then
      file()
      old, old_rec, state, place = replaceable(slot, key)
      freed = old and size_of(old, old_rec)
    end
    local why
    if old then
      full(key, principal, 0)
      lengths[key], depth = lengths[key] - 1, depth - 1
      why = full(key, principal, bytes - freed)
      lengths[key], depth = lengths[key] + 1, depth + 1
    else
      why = refusal(key, principal, bytes)
    end
    reply = CODES[why] or now + age
    if not why then
      known[id] = reply
      occupy(key, principal, bytes)
      count('bytes', bytes)
      count('enqueued')
      longest = math.max(longest, tonumber(age))
      if old then
        local first = math.floor(tonumber(sub(old_rec, 4, 19), 10) / 1000)
        replace(old, old_rec, state, place, key, slot, id, '1' .. parked .. (body and 'b' or '-') .. sub(old_rec, 4, 19) .. text, body,
          most and math.min(at, first + most))
      else
        if body then
          append(admitted.b, id, body)
        end
        admit(id, key, parked, text, body, tonumber(age), tonumber(delay) > 0 and at, nil, most and '\127')
        if slot then
          append(admitted.u, slot, id)
        end
      end
    end
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
