-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', principal or '', what its record has from the lengths on to the payload,
--           payload, delay before it becomes due in ms, its greatest age in ms, p if it is
--           parked because its key is held, q if it also may replace the last such one of its key, name and principal, c
--           if it only may that, else -; of q and c perhaps the ms for which others of these can put it off: then the delay is its quiet period;
--           m, c or -, and attempts if it comes from a closed partition: then its record's part begins with the times
-- returns   for each message its not_after in ms when it was stored now, as a string when it is stored already; the ending
--           of one that has ended; else 'key full', 'principal full', 'queue full', or 'closed' as the partition is;
--           and at last for how long no worker has claimed, in ms
-- #include common.lua
-- #include admit.lua

if #ARGV == 4 then -- no message: that is all that is asked for
  return conclude({now - (whole(own[8]) or now)})
end

local ids, known = listed(5, 8), {}
for field in pairs(all == 0 and uses or {}) do
  uses[field] = 0 -- a count that was lost is right again
end
for i, rec in ipairs(redis.call('HMGET', m, unpack(ids))) do
  known[ids[i]] = rec and rec:sub(33, 45)
end
for i = 11, 15 do
  for j, ending in ipairs(ended_bytes > 0 and redis.call('HMGET', KEYS[i], unpack(ids)) or {}) do
    known[ids[j]] = known[ids[j]] or ending
  end
end

local function store(id, key, principal, about, payload, delay, age, flags)
  if closed then
    return 'closed'
  end
  local flag, times, tries = flags:sub(1, 1), NOW .. text(now + age), nil
  if flag == 'm' then
    flag, times, about, tries = flags:sub(2, 2), about:sub(1, 26), about:sub(27), flags:sub(3)
  end
  local slot = (flag == 'q' or flag == 'c') and 's' .. about or ''
  local inline, n = bodies[id] and text(#payload) or payload, bodies[id] and #payload or 0
  local size = message_size(45 + #about + #inline + n, id, key, principal, slot)
  local old = slot ~= '' and not tries and replaceable(slot, key)
  local newer = tries and slot ~= '' and redis.call('HGET', u, slot)
  newer = newer and redis.call('HEXISTS', m, newer) == 1 and newer
  local why
  if tries then
    full(key, principal, 0, 0) -- which counts: there is room for what was stored long ago
  elseif old then
    why = full(key, principal, 0, size - old.size)
  else
    why = refusal(key, principal, size)
  end
  if why then
    return why
  end

  local delayed, most = tonumber(delay) > 0 and now + delay, slot ~= '' and tonumber(flags:sub(2))
  if delayed and micros % 1000 > 0 then
    delayed = delayed + 1 -- a message is never early
  end
  local number, place, due = nil, nil, delayed
  if old then
    number, place, due = old.number, old.place, old.due
    if place == '\127' and most and due then
      due = math.min(delayed, math.floor(tonumber(number, 10) / 1000) + most)
    end
  else
    number, all = next_seq(), all + 1
    place = delayed and (most and '\127' or '~') or number
    due = delayed or (key == '' or not headed[key]) and now
    headed[key] = headed[key] or not delayed
  end
  if bodies[id] then
    redis.call('SET', bodies[id], payload, 'PX', text(age + SLACK))
  end
  local header = '1' .. flag .. (bodies[id] and 'b' or '-') .. number .. times
  admit(id, key, principal, header .. about .. inline, place, due, size)
  weigh(size)
  span = math.max(span, age + retention)
  if slot ~= '' and not newer then
    add(u, slot, id)
  end
  if tries then
    note_tries(id, key, principal, '-', tries)
  else
    count('enqueued')
  end
  if newer then
    apply()
    discard(id, key, redis.call('HGET', m, id), 's', newer)
  elseif old then
    apply()
    discard(old.id, key, old.rec, 's', id)
    unrun[key] = nil -- its head is where it was
    if old.state ~= UNTRIED then
      note_tries(id, key, principal, old.state:sub(1, 1), old.state:match('^.(......%d+ %d+ %d+ %d+ )') .. ' ')
    end
  end
  return now + age
end

local replies = {}
for i = 5, #ARGV, 8 do
  local id = ARGV[i]
  local reply = known[id]
  if not reply then
    reply = store(unpack(ARGV, i, i + 7))
    known[id] = type(reply) == 'number' and text(reply) or nil
  end
  replies[#replies + 1] = reply
end
local claimed = whole(own[8])
if not claimed and counts.enqueued then -- from now on somebody ought to
  add(c, 'claimed', NOW)
end
replies[#replies + 1] = now - (claimed or now)
tidy()
return conclude(replies)
