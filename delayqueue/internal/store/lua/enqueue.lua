-- Stores messages: usual ones at once, others by room.lua. If a message with the id is stored already, the reply is
-- that of the first time, and nothing is changed.
--
-- KEYS, ARGV[1..3]  see common.lua and admit.lua
-- ARGV[4]   how many messages; after a space 1 if the caller has read the manifest since it was told that nothing was ever
--           stored here. Without it that is all it is told: it may know a manifest that Redis has lost
-- ARGV[5..] their ids, which differ;
--           of each its key, name, principal and payload, in one text;
--           how so many of them, one after the other, are stored: how many; the lengths of key, name and principal as the record
--             has them; the delay before they become due, in ms; or w and for how long they wait for their key,
--             in ms, if they are its head; their greatest age, in ms; = if the caller gave the id; p if they are parked because their
--             key is held, q if they also may replace the last such one of their key, name and principal, c if they only may
--             that, else -; then of q and c perhaps the ms for which others of these can put them off: the delay is their
--             quiet period;
--           the long payloads, in the order of their keys: the text has the payload's length in its place
-- returns   {now in ms; for how long no worker has claimed, in ms, or -1: nothing was stored, as nothing ever was, or, if there
--           are no messages, nothing is queued or runs; how many bytes the messages took before;
--           of each message that was to wait for its key and perhaps could not run now even if that were free, its number and
--           'rests'; of each that was not stored now its number, and its not_after in ms when it is stored already, the
--           ending of one that has ended, else 'key full', 'principal full' or 'queue full'}
-- #include common.lua
-- #include admit.lua
local HEADER = 54 -- bytes of a record before the key
local n, sure = ARGV[4]:match('^(%d+) ?(1?)$')
n = tonumber(n)
local IDS, TEXTS, HOWS, PAYLOADS = 4, 4 + n, 4 + 2 * n, #ARGV - #KEYS + FIRST_BODY - 1 -- come after these ARGV
local claimed = whole(own[8])
local replies = {now, math.max(0, now - (claimed or now)), bytes} -- a clock may step back
if n == 0 then -- that is all that is asked for
  replies[2] = all > redis.call('ZCARD', DEAD) and replies[2] or -1
  return conclude(replies)
elseif sure == '' and not own[10] then
  replies[2] = -1
  return conclude(replies)
elseif not claimed then -- from now on somebody ought to
  add(COUNTS, 'claimed', NOW)
end

-- How messages are stored.
local function read_how(s, before)
  local many, k, name, p, waits, delay, age, given, flag, more = s:match('^(%d+) (%d%d%d)(%d%d%d)(%d%d%d) (w?)(%d+) (%d+) (=?)(.)(.*)$')
  k, name, p, age = tonumber(k, 10), tonumber(name, 10), tonumber(p, 10), tonumber(age) -- to the embedded Redis 010 is octal
  local wait = waits == 'w' and now + delay
  local due = not wait and delay ~= '0' and now + delay
  if due and micros % 1000 > 0 then
    due = due + 1 -- a message is never early
  end
  local lengths, slot, most = s:sub(#many + 2, #many + 10)
  if flag == 'q' or flag == 'c' then
    slot, most = 's' .. lengths, tonumber(more)
  end
  return {
    first = before + 1, last = before + many, named = k + p > 0, key = k, principal = k + name + 1, about = k + name + p,
    due = due, wait = wait, age = age, lasts = age + retention,
    header = '1' .. flag, long = given == '=' and 'B' or 'b', inline = given == '=' and '=' or '-', tail = NOW .. text(now + age) .. lengths, slot = slot, most = most,
  }
end

-- A message's key, principal and slot, and its size.
local function read_job(how, id, body)
  local key, principal = body:sub(1, how.key), body:sub(how.principal, how.about)
  local slot = how.slot and how.slot .. body:sub(1, how.about) or ''
  local long = bodies[id] and tonumber(body:sub(how.about + 1)) or 0
  return key, principal, slot, message_size(HEADER + #body + long, id, key, principal, slot)
end

local hows, fields, last = {}, {}, 0
for i = HOWS + 1, PAYLOADS do
  local how = read_how(ARGV[i], last)
  hows[#hows + 1], last = how, how.last
  for j = how.first, how.named and last or 0 do
    local body = ARGV[TEXTS + j]
    fields[#fields + 1] = how.key > 0 and 'k' .. body:sub(1, how.key) or nil
    fields[#fields + 1] = how.about >= how.principal and 'p' .. body:sub(how.principal, how.about) or nil
  end
end
for i, used in ipairs(#fields > 0 and redis.call('HMGET', USES, unpack(fields)) or {}) do
  uses[fields[i]] = all > 0 and whole(used) or 0 -- a count that was lost is right again
end
-- Of ids that the queue has made too: a copy of this call that was given up may come after the one that was answered.
local known = redis.call('HMGET', MESSAGES, unpack(ARGV, 1 + IDS, TEXTS))
for i = 1, n do
  known[i] = known[i] and known[i]:sub(33, 45)
end
for ring, at in pairs({[13] = MADE, [14] = GIVEN}) do
  for bucket = at, own[ring] and at + BUCKETS - 1 or 0 do
    for i, ending in ipairs(redis.call('HMGET', KEYS[bucket], unpack(ARGV, 1 + IDS, TEXTS))) do
      known[i] = known[i] or ending
    end
  end
end

-- Stores a message, in the place of an old one if there is one.
local function store(how, i, id, body, key, principal, size, old)
  local number, place, due = nil, nil, how.due
  if old then
    number, place, due = old.number, old.place, old.due
    if place == '\127' and how.most and due then
      due = math.min(how.due, math.floor(tonumber(number, 10) / 1000) + how.most)
    end
  else
    number, all = key == '' and MICROS or next_seq(), all + 1
    place = how.due and (how.most and '\127' or '~') or number
    due = how.due or not headed[key] and (how.wait or now)
    if how.wait and due == how.wait then
      add(ATTEMPTS, id, 'w' .. UNTRIED:sub(2))
    end
    if how.wait and (due ~= how.wait or paused_until > now or halt_of(key)) then
      replies[#replies + 1], replies[#replies + 2] = i, 'rests'
    end
    headed[key] = key ~= '' and (headed[key] or not how.due)
  end
  local header = how.header .. (bodies[id] and how.long or how.inline)
  if bodies[id] then
    redis.call('SET', bodies[id], ARGV[PAYLOADS + body_at[id]], 'PX', text(how.age + SLACK))
  end
  admit(id, key, principal, header .. number .. how.tail .. body, place, due, size)
  bytes = bytes + size
  if how.lasts > span then
    span = how.lasts
  end
  count('enqueued')
end

local others = {} -- than what is stored for the first time, where there is room, and replaces nothing
local records, looks, room = {}, {}, open_room()
added[MESSAGES], added[WAITING] = records, looks
for _, how in ipairs(hows) do
  local header, plain, at, stored = how.header .. how.inline, not (how.named or how.slot), how.due and text(how.due) or NOW, 0
  for i = how.first, how.last do
    local id, body, why = ARGV[IDS + i], ARGV[TEXTS + i], known[i]
    local size = plain and not bodies[id] and message_size(HEADER + #body, id, '', '', '')
    if why then
      replies[#replies + 1], replies[#replies + 2] = i, why
    elseif size and all < max_depth and bytes + size <= room then -- the usual, in fewer steps than store() takes
      local a, b = #records, #looks
      records[a + 1], records[a + 2] = id, header .. MICROS .. how.tail .. body
      looks[b + 1], looks[b + 2] = at, id .. ' '
      all, bytes, stored = all + 1, bytes + size, stored + 1
    else
      local key, principal, slot, size = read_job(how, id, body)
      if slot ~= '' or full(key, principal, 1, size) then
        others[#others + 1], others[#others + 2] = how, i
      else
        store(how, i, id, body, key, principal, size)
      end
    end
  end
  if stored > 0 then
    soonest, span = math.min(soonest or how.due or now, how.due or now), math.max(span, how.lasts)
    count('enqueued', stored)
  end
end
if #others == 0 then
  return conclude(replies)
end

-- #include room.lua
-- #include replace.lua
for j = 1, #others, 2 do
  local how, i = others[j], others[j + 1]
  local id, body = ARGV[IDS + i], ARGV[TEXTS + i]
  local key, principal, slot, size = read_job(how, id, body)
  local old = how.slot and replaceable(slot, key)
  local why = old and full(key, principal, 0, size - old.size) or not old and refusal(key, principal, size)
  if why then
    replies[#replies + 1], replies[#replies + 2] = i, why
  else
    store(how, i, id, body, key, principal, size, old)
    if how.slot then
      add(USES, slot, id)
    end
    if old then
      apply()
      discard(old.id, key, old.rec, 's', id)
      unrun[key] = nil -- its head is where it was
      if old.state ~= UNTRIED then
        note_tries(id, key, principal, old.state:sub(1, 1), old.state:match('^.(......%d+ %d+ %d+ %d+ )') .. ' ')
      end
    end
  end
end
tidy()
return conclude(replies)
