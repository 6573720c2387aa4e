-- The beginning of every script on a partition: its arguments, the layout, and functions to read and write it.
-- docs/protocol.md describes the layout.
--
-- KEYS     all keys of a partition, in the order below: they share a hash tag, so one slot; then
--          the keys of long payloads, of messages that the caller names and that have one
-- ARGV[1]  the retention of messages that have ended, in ms, at least; after a space, how many bytes the
--          partition may take
-- ARGV[2]  the retention of dead letters, in ms
--
-- m  MESSAGES      HASH  id -> record: a message that is queued or running, or a dead letter
-- z  WAITING       ZSET  member -> when to look next, in ms: keyless messages, heads of keys, delayed ones
-- w  RUNNING       ZSET  member -> end of the claim, in ms: what runs
-- r  ATTEMPTS      HASH  id -> attempts: of those that run, or were tried
-- f  FIFOS         ZSET  place, all of score 0: every key's FIFO, head first; then what is delayed
-- c  COUNTS        HASH  counts, and the state of the partition itself
-- x  DEAD          ZSET  id -> ms of death
-- y  DEAD_LETTERS  HASH  id -> ending, of dead letters
-- e  EMPTIED       ZSET  key -> ms when the last of its messages ended unrun
-- k  RECEIPTS      HASH  receipts of claims, for the reply to a claim that is sent again
-- s0 to s3 HASH  id -> result, n0 to n3 HASH  id -> ending, of ids that the queue made, d0 to d3 the same of ids that
--   callers gave: messages that have ended, in three rings of buckets
-- u  USES          HASH  what is queued or running: k and a key, p and a principal -> bytes; s and an about
--                  without its times -> id of the message that a newer one replaces
-- h  HALTS         HASH  key -> p|k and the id of the dead letter that halts its messages, or all calls of it
-- g  LOADS         ZSET  n and a name, p and a group -> bytes of its dead letters; a group is <name>\n<principal>
-- l  LETTERS       ZSET  <group>\n<ended><id>, all of score 0: every dead letter, of each group the oldest first
-- b:<id>  STRING, a payload that is too long for a record, for as long as MESSAGES has the message
--
-- member    <id> <key>
-- place     <key>\n<seq><id>, or <key>\n~<id> while it is delayed, <key>\n\127<id> while it is quiet
-- record    1 p|-|q|c b|-|B|= seq:16 enqueued:13 not_after:13 #key:3 #name:3 #principal:3 key name principal payload
--           p: it is parked because its key is held, q: and a newer one may replace it, c: only that; b, B: instead of
--           the payload it has its length, in bytes; B, =: the caller gave the id
--           seq: its number in its key's FIFO; without a key just the time, in µs
-- attempts  r|R|w|- mark:6 attempts conflicts losses handed token cause
--           r: it runs, R: and its key was announced to be free; w: it waits for its key;
--           mark: the end of the token of the claim that was settled last; alone! once it has been run alone in its worker
-- ending    d|x|E ended:11 mark:6 attempts conflicts losses enqueued age #result #key #name #principal key name principal cause,
--           and a dead letter's result: done, dead, expired. Its worker has made it; enqueued and age are in base 36
--           e|c|s ended:11 mark:6, the record from the time it was enqueued on to its payload, and the other attempts: expired,
--           cancelled or superseded. The cause of s is the id of what superseded it.
--           ended is hexadecimal; the age is from when it was enqueued until not_after
--
-- Each message of a key that is queued or running has one place; the first that is not delayed
-- is the key's head, and that alone is in WAITING, or in RUNNING. The scripts take a record as it is: its worker
-- makes a dead letter of what it cannot read. A member names the key, so that it can.
--
-- What a script writes it puts off, to write it with one command for each key: what it has to read
-- itself it apply()s. Every script ends with flush(), or with conclude(). The first write is of a command that Redis runs
-- when its memory is full, or is the one that grows the queue: so a script is refused as a whole or runs
-- as a whole, never in part.
local MESSAGES, WAITING, RUNNING, ATTEMPTS, FIFOS, COUNTS, DEAD, DEAD_LETTERS, EMPTIED, RECEIPTS = unpack(KEYS, 1, 10)
local RESULTS, MADE, GIVEN, BUCKETS = 11, 15, 19, 4 -- where rings begin in KEYS
local USES, HALTS, LOADS, LETTERS = unpack(KEYS, 23, 26)
local FIRST_BODY = 27
local bodies, body_at = {}, {} -- ids -> keys of long payloads, and which of them it is
for i = FIRST_BODY, #KEYS do
  local id = KEYS[i]:sub(#MESSAGES + 2)
  bodies[id], body_at[id] = KEYS[i], i - FIRST_BODY + 1
end
local retention, max_bytes = ARGV[1]:match('^(%d+) (%d+)$')
retention, max_bytes = tonumber(retention), tonumber(max_bytes)
local dead_retention = tonumber(ARGV[2])
local STEPS = 20 -- how many messages a script reaps at most, of each kind
local SLACK = 3600000 -- ms that a key lives for longer at most, COUNTS and RECEIPTS twice that, so that it is seldom told to; a long payload at least
local LARGE = 10000 -- messages
local UNTRIED = '-------0 0 0 0  ' -- attempts
local LONGEST = 63244800000 -- ms that something is needed at most: its age and its retention, each of 366 days
local LASTS = math.max(dead_retention, 3 * retention, SLACK) -- ms that COUNTS lives
local HISTORY = math.floor(max_bytes / 2) -- bytes that what ended may take beside what is queued or runs, and dead letters again
local FLOOR = math.floor(HISTORY / 8) -- bytes of that which each ring keeps for itself
local ZSETS = {[WAITING] = true, [RUNNING] = true, [FIFOS] = true, [DEAD] = true, [EMPTIED] = true, [LOADS] = true, [LETTERS] = true}
-- Keys are written in this order. One that is not of its type fails: then MESSAGES is as it was.
local ORDER = {WAITING, RUNNING, FIFOS, DEAD, EMPTIED, ATTEMPTS, DEAD_LETTERS, RECEIPTS, USES, HALTS, LOADS, LETTERS, COUNTS, MESSAGES}

-- Redis makes the text of a number that it is given more slowly.
local function text(n) return string.format('%d', n) end

-- A non-negative whole number as these scripts write it; nil for anything else.
local function whole(s)
  local n = s and #s < 17 and tonumber(s)
  return n and n >= 0 and n < 1e16 and n % 1 == 0 and n or nil
end

local OWN = {'seq', 'bytes', 'ended', 'till', 'letters', 'paused', 'awaited', 'claimed', 'endless', 'enqueued', 'done',
  'results', 'made', 'given', 'latest', 'back'}
local own = redis.call('HMGET', COUNTS, unpack(OWN))

local latest, back_by = whole(own[15]) or 0, whole(own[16]) or 0
-- #include clock.lua
local NOW, MICROS = text(now), text(micros)

local had = {whole(own[1]), whole(own[2]), whole(own[3]), whole(own[4]), whole(own[5])}
local seq, bytes, ended_bytes, till, letter_bytes = had[1] or 0, had[2] or 0, had[3] or 0, had[4], had[5] or 0
local paused_until, awaited_until = whole(own[6]) or 0, whole(own[7]) or 0
local endless = own[9] == '1' -- no key of messages expires: MESSAGES was large

-- Until when the keys of messages live. Where that was lost they live as long as MESSAGES, and a large one has no end.
if not till then
  local left = redis.call('PTTL', MESSAGES)
  till = now + (left == -1 and LONGEST or left)
end

local all -- how many messages MESSAGES has, dead letters too, in a script that counts them
local added, removed, touched = {}, {}, {} -- by key: what is to be written, and whether anything was
local made = not had[4] -- whether a key was perhaps not there before it was written
local fresh = {} -- keys that surely were not
local counts, uses, loads = {}, {}, {} -- uses: fields of USES, with their numbers; loads: members of LOADS
local rings = {} -- what finish.lua knows of what has ended
local freed = {} -- ids of messages that need their long payload no more
local ended = {} -- ids of messages that this script ended
local soonest -- of what was made due
local span = 0 -- ms that what was written has to live for

-- Has a field of a HASH, or a member of a ZSET with its score, be written.
local function add(key, field, value)
  local list = added[key]
  if not list then
    list = {}
    added[key] = list
  end
  local n = #list
  if ZSETS[key] then
    list[n + 1], list[n + 2] = value, field
  else
    list[n + 1], list[n + 2] = field, value
  end
end

local function remove(key, field)
  local list = removed[key] or {}
  list[#list + 1] = field
  removed[key] = list
end

-- Writes what add() and remove() have put off.
local function apply()
  local keys, known = {}, {}
  for i = 1, next(added) and #ORDER or 0 do
    local key, list = ORDER[i], added[ORDER[i]]
    if list and list[1] then
      keys[#keys + 1] = key
      known[#known + 1] = key ~= COUNTS and key or nil -- that is there if its till is
    end
  end
  if not made and not endless and #known > 0 then
    local there = redis.call('EXISTS', unpack(known))
    made = there < #known
    for i = 1, there == 0 and #known or 0 do
      fresh[known[i]] = true
    end
  end
  for i = 1, #keys do
    local key = keys[i]
    redis.call(ZSETS[key] and 'ZADD' or 'HSET', key, unpack(added[key]))
    touched[key] = true
  end
  for i = 1, next(removed) and #ORDER or 0 do
    local key = ORDER[i]
    if removed[key] then
      redis.call(ZSETS[key] and 'ZREM' or 'HDEL', key, unpack(removed[key]))
    end
  end
  added, removed = {}, {}
end

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- How many bytes the messages take of a key, kind 'k', or of a principal, 'p', with so many more.
local function use(kind, name, more)
  if name == '' then
    return 0
  end
  local field = kind .. name
  uses[field] = uses[field] or whole(redis.call('HGET', USES, field)) or 0
  uses[field] = math.max(0, uses[field] + (more or 0))
  return uses[field]
end

-- Writes the sums of USES and LOADS, with all that was put off.
local function write_sums()
  for key, sums in pairs({[USES] = uses, [LOADS] = loads}) do
    for field, n in pairs(sums) do
      if n > 0 then
        add(key, field, text(n))
      else
        remove(key, field)
      end
    end
  end
  uses, loads = {}, {}
  apply()
end

-- How many bytes there may be of what is queued or runs. Ids of callers that ended beyond their room, in the last minute,
-- take of it. Those that the queue made do not: they come as fast as work is done, and would refuse it.
local function open_room()
  if ended_bytes <= HISTORY then
    return max_bytes
  end
  local s0, s1, s2, s3 = (own[14] or ''):match('^%d+ %d+ %d+ (%d+) %d+ (%d+) %d+ (%d+) %d+ (%d+)')
  local given = rings[3] and rings[3].total or (s0 or 0) + (s1 or 0) + (s2 or 0) + (s3 or 0)
  return max_bytes - math.max(0, math.min(ended_bytes - HISTORY, given + 2 * FLOOR - HISTORY))
end

-- What a message takes of Redis whose record and payload have n bytes: entries in MESSAGES, WAITING or RUNNING, and ATTEMPTS; with a key one in FIFOS and
-- one in USES, with a principal and with a slot one in USES each. Redis rounds up, by a quarter at most.
local function message_size(n, id, key, principal, slot)
  n = n + 3 * #id
  if key ~= '' then
    n = n + 128 + 3 * #key
  end
  if principal ~= '' then
    n = n + 48 + #principal
  end
  if slot ~= '' then
    n = n + 48 + #slot + #id
  end
  return 280 + math.floor(1.25 * n)
end

-- The number of the next message that comes: it grows, also if COUNTS is lost.
local function next_seq()
  seq = math.max(micros, seq + 1)
  return text(seq)
end

local function look_at(member, at)
  add(WAITING, member, at == now and NOW or text(at))
  if not soonest or at < soonest then
    soonest = at
  end
end

-- The first places of a key, without what is delayed.
local function fifo(key, n)
  return redis.call('ZRANGEBYLEX', FIFOS, '[' .. key .. '\n', '(' .. key .. '\n~', 'LIMIT', '0', n)
end

local function id_at(place, key) return place:sub(#key + 18) end

local function is_running(state)
  local flag = state and state:sub(1, 1)
  return flag == 'r' or flag == 'R'
end

-- What halts a key's messages, or nil.
local halts -- how many keys are halted, at most
local function halt_of(key)
  halts = halts or redis.call('HLEN', HALTS)
  return halts > 0 and redis.call('HGET', HALTS, key) or nil
end

-- Whether a claim is still the one whose attempts were sent to its worker; since then its flag and its mark may have changed.
local function is_held(state, sent) return state == sent or is_running(state) and state:sub(8) == sent:sub(8) end

-- Publishes to a channel of the queue, which may be forbidden.
local function publish(channel, message)
  local queue = string.gsub(MESSAGES:sub(1, -3), '({[^/}]*)/[^}]*}$', '%1}') -- of a partition's name
  redis.pcall('PUBLISH', queue .. channel, message)
end

-- Wakes the workers: something is due earlier than before, in ms, or a key has no messages
-- any more that nobody ran.
local function announce(ms, key)
  publish(':wake', MESSAGES:sub(1, -3) .. (key and ' ' .. key or ms > 0 and '\n' .. text(ms) or ''))
end

-- Has a key live for ms more, and for as long as left. A large one does not expire: Redis would stand
-- still until it is freed.
local function keep(key, ms, left, large, new)
  if large then
    redis.call('PERSIST', key)
  elseif new or redis.call('PTTL', key) < math.max(ms, left - 1000) then -- what is told is not exact
    redis.call('PEXPIRE', key, math.max(ms + math.floor(math.min(ms / 4, SLACK)), left))
  end
end

-- Writes what is left to write, and wakes the workers if what the script made due is now the first: else
-- they have an earlier one to wake for.
local function flush()
  for what, n in pairs(counts) do
    local before = what == 'enqueued' and own[10] or what == 'done' and own[11] or redis.call('HGET', COUNTS, what)
    add(COUNTS, what, text((whole(before) or 0) + n))
  end
  local later = till < now + span
  if later then
    till = now + math.floor(span + math.min(span / 4, SLACK))
  end
  for i, n in ipairs({seq, bytes, ended_bytes, till, letter_bytes}) do
    if n ~= had[i] then
      add(COUNTS, OWN[i], text(n))
    end
  end
  for _, ring in ipairs(rings) do
    if ring.changed then
      local words = {ring.current, text(ring.since)}
      for i = 0, BUCKETS - 1 do
        words[#words + 1], words[#words + 2] = text(ring.needed[i]), text(ring.size[i])
      end
      for i = 0, BUCKETS - 1 do
        words[#words + 1] = text(ring.last[i])
      end
      add(COUNTS, ring.name, table.concat(words, ' '))
    end
  end
  -- What the clock showed is noted with what is counted, and each second.
  local writes = next(added) or next(removed) or next(touched)
  if moved ~= 0 or added[COUNTS] or writes and now - latest >= 1000 then
    add(COUNTS, 'latest', NOW)
  end
  if moved ~= 0 then
    add(COUNTS, 'back', text(back_by))
  end
  local large, crosses = endless, false
  if next(added) or next(removed) or next(touched) then
    large = (all or redis.call('HLEN', MESSAGES)) > LARGE
    crosses = large ~= endless
    if crosses then
      add(COUNTS, 'endless', large and '1' or '0')
    end
  end
  write_sums()
  -- The keys of messages live as long as the one that is needed for longest: till. That is told to all of them each time that it
  -- is put off, every hour at least, and to one that was made since; and it is remembered, as none has a time of its own while MESSAGES is large.
  for i = 1, (crosses or not large and (later or made)) and #ORDER or 0 do
    local key = ORDER[i]
    if crosses or later or touched[key] and (key ~= COUNTS or not had[4]) then
      keep(key, key == COUNTS and LASTS + SLACK or key == RECEIPTS and math.max(retention, SLACK) + SLACK or retention, till - now, large, fresh[key])
    end
  end
  if #ended > 0 and awaited_until > now then -- somebody waits
    publish(':ended', table.concat(ended, ' '))
  end
  if soonest and #redis.call('ZRANGEBYSCORE', WAITING, '-inf', '(' .. text(soonest), 'LIMIT', '0', '1') == 0 then
    announce(soonest - now)
  end
end

-- Ends a script: answers what it replies, and at last the ids of those whose long payload the caller is to free,
-- with free.lua, since this script does not declare it.
local function conclude(replies)
  flush()
  local here, left = {}, {}
  for _, id in ipairs(freed) do
    local list = bodies[id] and here or left
    list[#list + 1] = bodies[id] or id
  end
  if #here > 0 then
    redis.call('UNLINK', unpack(here))
  end
  replies[#replies + 1] = left
  return replies
end
