-- Ends claims, each if the caller holds it → claims the next messages: the next of the same
-- key for a worker that goes on under the key's lock, or one that is due. If it is sent again by the
-- same caller, the reply is that of the first time.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   claim lease, in ms, of what is claimed next
-- ARGV[4]   a time of Redis in ms, no later than the ends of the claims that the first tries of these settlements made
-- ARGV[5..] for each claim: id, key or '', principal or '', seq, attempts as they were sent to the worker, and
--   how     d  it is done; then g if the caller gave its id
--           E  it expires: it would be too old for its next attempt; then g as well
--           x  it becomes a dead letter; then p if that halts the messages of its key, k if it halts its key, else -
--           r  the attempt failed; the message goes back
--           b  it goes back without a failed attempt; then w if it waits for its own key, so that wake.lua makes it due
--           h  it goes back: this worker cannot run it, another may
--   slot    which field of USES has it, if a newer message may replace it
--   size    of its record and its payload, in bytes
--   of what ends: its ending, from the mark on; its result or ''
--   of others: its attempts, without the flag; the delay before it is due again, in ms, and its not_after
--   next    token to claim the next message with, or ''
--   which   of the next: k the next of its key, which the caller holds; a what is due
-- returns   for each claim a number, or it and the next message, if one was claimed: now, or when
--           the call was sent before: 1 when it was the caller's, else 0;
--           and at last now in ms, 1 when a message is due now, else 0, and how
--           many dead letters were forgotten for lack of room, with the name of the last after a space
-- #include common.lua
-- #include finish.lua
-- #include ended.lua
-- #include take.lua
local lease = tonumber(ARGV[3])
local FIRST, SIZE = 5, 12 -- where claims begin in ARGV, and how much there is of each
local BYTES = 1048576 -- of payload that are claimed at most, the last message's aside
local BACK = {r = true, b = true, bw = true, h = true}
local RECENT = 1000 -- how many running messages are looked at, for one that nobody heard of
local idle = paused_until > now -- nothing is to be claimed
redis.call('HDEL', COUNTS, '')

local function ends(id, key, principal, seq, tries, how, slot, size, ending, result)
  local letter = how:sub(1, 1)
  ending = letter .. ENDED_AT .. ending
  if letter == 'x' then
    local halts = how:sub(2, 2)
    ending, result = ending .. result, ''
    if key ~= '' and halts ~= '-' then
      add(HALTS, key, halts .. id)
    end
  end
  if bodies[id] and letter == 'x' then
    keep(bodies[id], dead_retention, 0)
  elseif bodies[id] then
    freed[#freed + 1] = id
  end
  finish(id, key, principal, slot, tonumber(size), tries:sub(2), letter, ending, how:sub(2, 2) == 'g', result)
  if key ~= '' then -- of a record that is junk the place is not known, but it is the first
    remove(FIFOS, seq ~= '' and key .. '\n' .. seq .. id or fifo(key, '1')[1])
  end
end

local ids, fields = {}, {}
for at = FIRST, #ARGV, SIZE do
  local key, principal = ARGV[at + 1], ARGV[at + 2]
  ids[#ids + 1] = ARGV[at]
  if key ~= '' then
    fields[#fields + 1] = 'k' .. key
  end
  if principal ~= '' then
    fields[#fields + 1] = 'p' .. principal
  end
end
for i, n in ipairs(#fields > 0 and redis.call('HMGET', USES, unpack(fields)) or {}) do
  uses[fields[i]] = whole(n) or 0
end

local replies, heads, due = {}, {}, {} -- heads: keys that have another head -> token for it, or false; due: tokens for what is
local back, others = {}, {} -- back: numbers of claims that go back; others: those that are not the caller's, or not any more
local states = redis.call('HMGET', ATTEMPTS, unpack(ids))
for n, state in ipairs(states) do
  local at = FIRST + SIZE * (n - 1)
  local id, key, principal, seq, tries, how, slot, size, ending, result, token, which = unpack(ARGV, at, at + SIZE - 1)
  if not is_held(state, tries) then
    others[#others + 1] = {n, id, ending:sub(1, 6), token}
  else
    local claims = token ~= '' and not idle and which
    replies[n], asked[token] = 1, n
    remove(RUNNING, id .. ' ' .. key)
    if BACK[how] then
      back[#back + 1] = n
    else
      ends(id, key, principal, seq, tries, how, slot, size, ending, result)
      if key ~= '' then
        heads[key] = claims == 'k' and token
      end
    end
    if claims == 'a' then
      due[#due + 1] = token
    end
  end
end
tidy()

-- What is claimed next: of their key, and what is due.
for key, token in pairs(heads) do
  local first = fifo(key, '2')
  local id = first[1] and id_at(first[1], key)
  if id and token then
    want(id, id .. ' ' .. key, first, token, NOW)
  elseif id then
    look_at(id .. ' ' .. key, now)
  end
end
want_due(due)
start(lease, BYTES, replies)
tidy(#back == 0 and lease) -- what is given back runs by ATTEMPTS until then

-- The functions of what is rarer are made where they are needed.
if #others > 0 then
  -- #include again.lua
  -- What a settlement claimed that is sent again runs by its token. Nobody heard of it, so nobody has extended it: few that run
  -- have an earlier end, of those that were claimed or extended since the settlement was sent first.
  local recent, running = {}, {} -- ids; ids by tokens
  for i, member in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, ARGV[4], '+inf', 'LIMIT', 0, RECENT)) do
    recent[i] = split(member)
  end
  for i, state in ipairs(#recent > 0 and redis.call('HMGET', ATTEMPTS, unpack(recent)) or {}) do
    running[state and state:match('^[rR]......%d+ %d+ %d+ %d+ (%S+)') or ''] = recent[i]
  end
  for _, other in ipairs(others) do
    local n, id, mark, token = unpack(other)
    local state = redis.call('HGET', ATTEMPTS, id)
    local found = state and state:sub(2, 7) == mark -- whether it was settled as it is to be
    for _, name in ipairs({DEAD_LETTERS, unpack(KEYS, MADE, GIVEN + BUCKETS - 1)}) do
      local ending = redis.call('HGET', name, id)
      found = found or ending and ending:sub(13, 18) == mark
    end
    replies[n] = {found and 1 or 0, token ~= '' and running[token] and again(running[token], token, lease)}
  end
end
if #back > 0 then
  -- #include back.lua
end
local forgotten = '0 '
if letter_bytes > HISTORY then
  -- #include letters.lua
  forgotten = forget_most(#states + 20)
  tidy()
end
span = math.max(span, lease + retention)
replies[#states + 1] = NOW
replies[#states + 2] = (first_in(WAITING) or now + 1) <= now and 1 or 0
replies[#states + 3] = forgotten
return conclude(replies)
