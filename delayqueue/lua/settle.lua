-- Ends claims, each if the caller holds it; and claims the next message of the same
-- key for a worker who goes on under the key's lock, or what is due. Sent again by the
-- same caller it answers as the first time did.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   claim lease, in ms, of what is claimed next
-- ARGV[4..] of each claim: id, key or '', seq, attempts as they were told, and
--   options one letter each: how it ends
--             d  it is done
--             e  it expires: it would be too old for its next attempt
--             x  it becomes a dead letter
--             m  it was carried over to another partition: it is forgotten here
--             r  the attempt failed; the message goes back
--             b  it goes back, and this is no failure
--             h  it goes back: this worker cannot run it, another may
--           what is claimed next: k the next of its key, which the caller holds; a what is due; else -
--           of what goes back: w when it waits for its own key, so that wake.lua makes it due; else -
--           of a dead letter: p when it halts the messages of its key, k when it halts its key, else -;
--           and of its record and its payload how many bytes they have, in ten digits, its principal, and
--           after a line feed what field of u has it, if a newer message may replace it
--   next    token to claim the next message with, or ''
--   of what ends: its ending, from the mark on; its result or ''
--   of others: its attempts, without the flag; the delay before it is due again, in ms, and its not_after
-- returns   for each claim a number, or it and the next message, if one was claimed: now, or when
--           the call was sent before: 1 when it was the caller's, else 0;
--           and at last now in ms and, after a space, what closed the partition, 1 when a message is due now, else 0
-- #include common.lua
-- #include take.lua
local lease = tonumber(ARGV[3])
local BYTES = 1048576 -- of payload that are claimed at most, the last message's aside
local RECENT = 1000 -- how many running messages are looked at, for one that nobody heard of
local SLOT = 50 -- ms: what is handed back becomes due together, so that a claim brings many
local COUNTS = {d = 'done', e = 'expired', x = 'dead', r = 'retried'}
local idle = paused_until() > now -- nothing is to be claimed

local running -- ids by tokens

-- What a settlement claimed that is sent again.
local function claimed_before(token)
  if not running then
    running = {}
    local ids = {}
    for i, member in ipairs(call('ZREVRANGE', w, 0, RECENT - 1)) do
      ids[i] = split(member)
    end
    for i, state in ipairs(#ids > 0 and call('HMGET', r, unpack(ids)) or {}) do
      running[state and match(state, '^[rR]......%d+ %d+ %d+ %d+ (%S+)') or ''] = ids[i]
    end
  end
  return token ~= '' and running[token] and again(running[token], token, lease)
end

-- Whether a claim that is not the caller's, or not any more, was settled as it is to be.
local function settled_before(id, mark)
  local state = call('HGET', r, id)
  local found = state and sub(state, 2, 7) == mark
  for _, i in ipairs({9, 12, 13, 14, 15, 16}) do -- y and the buckets
    local ending = call('HGET', KEYS[i], id)
    found = found or ending and sub(ending, 13, 18) == mark
  end
  return found and 1 or 0
end

local replies, asked, due = {}, {}, {} -- asked: whose reply a token is for; due: tokens for what is
local held, over, gone, places, endings = {}, {}, {}, {}, {}
local letters, deaths, halts, slots = {}, {}, {}, {}
local back, times, freed = {}, {}, {} -- freed: those whose key has another head

local at = string.format('%011x', now)

-- Whose a message is, and its slot.
local function owner(options)
  if #options == 14 then
    return '', ''
  end
  return match(options, '^([^\n]*)\n?(.*)$', 15)
end

local function finish(id, key, seq, how, text, result, options)
  over[#over + 1] = id
  ended[#ended + 1] = id
  local bytes, principal, slot = message_size(tonumber(sub(options, 5, 14), 10)), owner(options)
  occupy(key, principal, -bytes)
  if slot ~= '' then
    append(slots, id, slot)
  end
  text = how .. at .. text
  if how == 'x' then
    text = text .. result
    append(letters, id, text)
    append(deaths, NOW, id)
    count('bytes', ending_size(#text))
    if key ~= '' and sub(options, 4, 4) ~= '-' then
      append(halts, key, sub(options, 4, 4) .. id)
    end
  else
    gone[#gone + 1] = id
    count('bytes', -bytes)
    if how ~= 'm' then
      append(endings, id, text)
    end
    if result ~= '' then
      append(endings, id .. ' ', result)
    end
  end
  if key ~= '' then -- of a record that is junk the place is not known, but it is the first
    places[#places + 1] = seq ~= '' and key .. '\n' .. seq .. id or line(key, '1')[1]
  end
end

-- The message that has come since and is to run in place of one that no handler was given.
local function newer(id, tries, slot)
  local by = slot ~= '' and match(tries, '^......0 %d+ 0 0 ') and call('HGET', u, slot)
  return by and by ~= id and call('HEXISTS', m, by) == 1 and by
end

local function give_back(member, id, how, waits, state, tries, till)
  local delay, not_after = match(till, '^(%d+) (%d+)$')
  local next = now + delay
  if how == 'h' then
    next = math.max(now, next - next % SLOT)
  elseif waits and sub(state, 1, 1) == 'R' then
    next = now -- the key was freed since the conflict
  end
  next = math.min(next, tonumber(not_after))
  append(back, id, (waits and 'w' or '-') .. tries)
  append(times, next, member)
  soonest = math.min(soonest or next, next)
end

local ids, fields = {}, {}
for i = 4, #ARGV, 8 do
  ids[#ids + 1] = ARGV[i]
  local key, principal = ARGV[i + 1], owner(ARGV[i + 4])
  fields[#fields + 1] = key ~= '' and 'k' .. key or nil
  fields[#fields + 1] = principal ~= '' and 'p' .. principal or nil
end
fetch(fields)
for n, state in ipairs(call('HMGET', r, unpack(ids))) do
  local id, key, seq, tries, options, token, text, extra = unpack(ARGV, 8 * n - 4, 8 * n + 3)
  local how, which = sub(options, 1, 1), token ~= '' and not idle and sub(options, 2, 2)
  if not is_running(state) or sub(state, 2) ~= tries then
    replies[n] = {settled_before(id, sub(text, 1, 6)), claimed_before(token)}
  else
    replies[n] = 1
    held[#held + 1] = id .. ' ' .. key
    if COUNTS[how] then
      count(COUNTS[how])
    end
    if how == 'd' or how == 'e' or how == 'x' or how == 'm' then
      finish(id, key, seq, how, text, extra, options)
      if key ~= '' then
        freed[#freed + 1] = n
      end
    else
      local by = newer(id, text, (select(2, owner(options))))
      if by then
        call('HSET', r, id, '-' .. text)
        give_up(id, key, call('HGET', m, id) or '', 's', by)
      else
        give_back(held[#held], id, how, sub(options, 3, 3) == 'w', state, text, extra)
      end
    end
    if which == 'a' then
      asked[token] = n
      due[#due + 1] = token
    end
  end
end

batch('ZREM', w, held)
batch('HDEL', r, over)
batch('HDEL', m, gone)
batch('HDEL', b, gone)
batch('ZREM', f, places)
if #endings > 0 then
  remember(endings)
end
if #deaths > 0 then
  for i = 2, #deaths, 2 do
    call('HSETNX', m, deaths[i], '')
  end
  batch('HSET', y, letters)
  batch('ZADD', x, deaths)
  batch('HSET', h, halts)
  live(dead_retention, x, y, h)
end
for i = 1, #slots, 2 do
  settle_slot(slots[i], slots[i + 1])
end
batch('HSET', r, back)

-- What is claimed next: of their key, and what is due.
for _, n in ipairs(freed) do
  local key, options, token = ARGV[8 * n - 3], ARGV[8 * n], ARGV[8 * n + 1]
  local first = line(key, '2')
  local id = first[1] and id_at(first[1], key)
  if id and sub(options, 2, 2) == 'k' and token ~= '' and not idle then
    asked[token] = n
    want(id, id .. ' ' .. key, first, token, NOW)
  elseif id then
    append(times, NOW, id .. ' ' .. key)
    soonest = math.min(soonest or now, now)
  end
end
want_due(due)
local given = start(lease, BYTES)
batch('ZADD', z, times) -- at last: nobody is given again what he gives back
for i, token in ipairs(tokens) do
  if given[i] then
    replies[asked[token]] = {1, given[i]}
  end
end

if #held > 0 then
  live(lease + retention, z, w, r)
end
flush()
replies[#replies + 1] = told_now()
replies[#replies + 1] = (first_in(z) or now + 1) <= now and 1 or 0
return replies
