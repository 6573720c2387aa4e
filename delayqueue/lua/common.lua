-- What the scripts of a queue share: each begins with it.
--
-- KEYS     a partition's base name, and another one. No key has either: their hash tag
--          sends the script to the slot that holds all keys of the partition, and a
--          Redis Cluster refuses it while that slot moves. Which keys it needs is known
--          only while it runs.
-- ARGV[1]  how long done, expired and cancelled messages are remembered, in ms, at least
-- ARGV[2]  how long dead letters are kept, in ms
--
-- <base>:due           ZSET  member -> due ms, of keyless messages and of each key's head
-- <base>:open          ZSET  member -> not_after ms, of all queued messages
-- <base>:running       ZSET  member -> end of the claim in ms
-- <base>:dead          ZSET  id -> ms of death
-- <base>:message:<id>  HASH  the record of a message
-- <base>:order:<key>   LIST  ids of the open and running messages of a key, in order of arrival
-- <base>:claim:<token> the ids that a claim took; it answers a claim that is sent again
-- <base>:audit         where the next audit of open messages begins
-- <base>:emptied       ZSET  key -> ms when the last of its messages ended unrun
-- <base>:counts        HASH  how many messages came, and how they ended
-- <base>:receipt:<...> what a call answered that must not be done twice
-- <base>:paused        exists while nothing is to be claimed
-- <base>:junk:<...>    what was found where something else had to be
--
-- A member is '<id> <key>'. The key in it lets a message leave the line of its
-- key even when its record is gone or unreadable.
--
-- Every script makes its first write with a command that Redis runs when its
-- memory is full, or with the one that grows the queue: so it is refused as a
-- whole or runs as a whole, never in part. Every script ends with flush().
local base = KEYS[1]
local due, open, running, dead = base .. ':due', base .. ':open', base .. ':running', base .. ':dead'
local retention, dead_retention = tonumber(ARGV[1]), tonumber(ARGV[2])
local STEPS = 20 -- how many messages a script tidies up at most

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- What is made again and again is made once: it is quicker.
local records, moments = {}, {}

local function record(id)
  local name = records[id]
  if not name then
    name = base .. ':message:' .. id
    records[id] = name
  end
  return name
end

-- A time in ms as it is written: Redis takes longer to make the text of a number. Not for
-- lengths of time: the embedded Redis makes an array of as many places as a small index says.
local function moment(ms)
  local s = moments[ms]
  if not s then
    s = string.format('%d', ms)
    moments[ms] = s
  end
  return s
end

local function line(key) return base .. ':order:' .. key end

local function kind_of(name)
  local t = redis.call('TYPE', name)
  return type(t) == 'table' and t.ok or t
end

-- Makes a key live for ms more, at least.
local function keep(name, ms)
  if redis.call('PTTL', name) < ms then
    redis.call('PEXPIRE', name, ms)
  end
end

local lives, counts, soonest = {}, {}, nil

-- Has a key live for ms more, at least, when the script ends.
local function outlive(name, ms) lives[name] = math.max(lives[name] or 0, ms) end

local function count(what) counts[what] = (counts[what] or 0) + 1 end

-- Wakes the workers: something is due earlier than before, or a key has no messages
-- any more that nobody ran.
local function announce(key)
  local queue = string.gsub(base, '({[^/}]*)/[^}]*}$', '%1}') -- of a partition's name
  redis.pcall('PUBLISH', queue .. ':wake', key and base .. ' ' .. key or base) -- channels may be forbidden
end

-- Writes what was put off to the end of the script, and wakes the workers if what
-- it made due is now the first: else they have an earlier one to wake for.
local function flush()
  for what, n in pairs(counts) do
    if type(redis.pcall('HINCRBY', base .. ':counts', what, n)) ~= 'number' then -- junk: count anew
      redis.call('HSET', base .. ':counts', what, n)
    end
    outlive(base .. ':counts', dead_retention)
  end
  for name, ms in pairs(lives) do
    keep(name, ms)
  end
  if soonest then
    local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
    if tonumber(first[2]) == soonest then
      announce()
    end
  end
end

-- Moves away what has the name but not the type of one of our keys.
local function clear(name, kind)
  local found = kind_of(name)
  if found ~= kind and found ~= 'none' then
    local aside = base .. ':junk:' .. string.sub(name, #base + 2)
    redis.call('RENAME', name, aside)
    redis.call('PEXPIRE', aside, dead_retention)
  end
end

local function clear_sets()
  for _, set in ipairs({due, open, running, dead}) do
    clear(set, 'zset')
  end
  clear(base .. ':counts', 'hash')
end

-- A non-negative whole number as these scripts write it; nil for anything else.
local function whole(s)
  local n = #s < 16 and tonumber(s)
  return n and n >= 0 and n < 1e15 and n % 1 == 0 and n or nil -- what it reads is more than we write, such as 1e3
end

-- The score of an entry as a number, whatever it is: Lua does not read every
-- spelling of infinity.
local function score_of(s)
  return tonumber(s) or (string.sub(s, 1, 1) == '-' and -math.huge or math.huge)
end

local function split(member)
  local at = string.find(member, ' ', 1, true)
  if not at then
    return member, ''
  end
  return string.sub(member, 1, at - 1), string.sub(member, at + 1)
end

local FIELDS = {'key', 'name', 'state', 'enqueued', 'due', 'not_after', 'attempts', 'conflicts', 'losses'}

-- Why what was read is no record of a message.
local function flaw(id, key, f)
  if f.err then
    return 'the record is a ' .. kind_of(record(id)) .. ', not a hash'
  elseif kind_of(record(id)) == 'none' then
    return 'the record is missing'
  end
  for i = 1, 3 do
    if not f[i] then
      return 'the record has no ' .. FIELDS[i]
    end
  end
  for i = 4, 9 do
    if not whole(f[i] or i > 6 and '0' or '') then
      return "the record's " .. FIELDS[i] .. ' is not a number'
    end
  end
  return 'the record is of another key'
end

-- Reads the record of a message, with its payload if the caller wants that. Answers
-- nil and the reason when it is not one. A counter that is not there is zero.
local function load(id, key, payload)
  local f = redis.pcall('HMGET', record(id), 'key', 'name', 'state', 'enqueued', 'due', 'not_after',
    'attempts', 'conflicts', 'losses', 'wait', 'nudged', 'principal', 'handed', payload and 'payload' or 'state')
  local enqueued, at, not_after = whole(f[4] or ''), whole(f[5] or ''), whole(f[6] or '')
  local attempts, conflicts, losses = whole(f[7] or '0'), whole(f[8] or '0'), whole(f[9] or '0')
  if f[1] ~= key or not (f[2] and f[3] and enqueued and at and not_after and attempts and conflicts and losses) then
    return nil, flaw(id, key, f)
  end
  return {
    key = key, name = f[2], state = f[3], enqueued = enqueued, due = at, not_after = not_after,
    attempts = attempts, conflicts = conflicts, losses = losses,
    wait = f[10], nudged = f[11], principal = f[12] or '', handed = whole(f[13] or '0') or 0, payload = payload and f[14],
  }
end

-- Whether a message runs by a claim's token.
local function owned(id, m, token)
  return m.state == 'running' and redis.call('HGET', record(id), 'owner') == token
end

-- How long the record and the entries of a message must live on, in ms.
local function life(m, lease) return math.max(m.not_after - now, lease or 0) + retention end

-- Sets the end of a claim. It takes the entry out first: that Redis does also
-- when its memory is full.
local function hold(member, m, lease)
  redis.call('ZREM', running, member)
  redis.call('ZADD', running, now + lease, member)
  outlive(running, life(m, lease))
end

-- Makes an open message due.
local function make_due(member, at, ms)
  redis.call('ZADD', due, at, member)
  outlive(due, ms)
  soonest = math.min(soonest or at, at)
end

-- Makes an open message due at the time that its record says.
local function schedule(member, id)
  local f = redis.pcall('HMGET', record(id), 'due', 'not_after') -- an error is no number: due now
  make_due(member, math.max(now, whole(f[1] or '-') or now), math.max(0, (whole(f[2] or '-') or now) - now) + retention)
end

-- Whether an open message has no due time, or one that is later than its record says:
-- somebody damaged due.
local function misplaced(member, id)
  local score = redis.call('ZSCORE', due, member)
  if not score or score_of(score) <= now then
    return not score
  end
  local at = redis.pcall('HGET', record(id), 'due')
  return type(at) == 'string' and score_of(score) > (whole(at) or now)
end

-- Puts a message among the open ones.
local function reopen(member, m)
  redis.call('ZADD', open, m.not_after, member)
  outlive(open, life(m))
end

-- Makes the head of a key's line due, unless it is due already or runs. Ids that
-- are of no message any more are dropped from the line. Answers whether there is a
-- head.
local function advance(key)
  for _ = 1, STEPS do
    local head = redis.call('LINDEX', line(key), 0)
    if not head then
      return false
    end
    local member = head .. ' ' .. key
    if redis.call('ZSCORE', due, member) or redis.call('ZSCORE', running, member) then
      return true
    end
    if redis.call('ZSCORE', open, member) then
      schedule(member, head)
      return true
    end
    local m = load(head, key)
    if m and m.state == 'queued' then -- somebody damaged open
      reopen(member, m)
      schedule(member, head)
      return true
    end
    redis.call('LPOP', line(key))
  end
  return true
end

-- Takes a message that has ended out of its key's line.
local function drop(id, key)
  if redis.pcall('LINDEX', line(key), 0) == id then
    redis.call('LPOP', line(key))
  else
    clear(line(key), 'list')
    redis.call('LREM', line(key), 1, id)
  end
end

-- Takes a message that has ended out of the sets and out of its key's line; the
-- next of its key becomes due.
local function leave(member, id, key)
  redis.call('ZREM', running, member)
  redis.call('ZREM', open, member)
  redis.call('ZREM', due, member)
  if key ~= '' then
    drop(id, key)
    advance(key)
  end
end

-- Announces a key that has no messages any more which nobody ran: nobody is left to have
-- it before others. A claim tells a worker of it if nobody heard.
local function emptied(key)
  if key ~= '' and redis.call('EXISTS', line(key)) == 0 then
    announce(key)
    clear(base .. ':emptied', 'zset')
    redis.call('ZADD', base .. ':emptied', now, key)
    outlive(base .. ':emptied', retention)
  end
end

-- Makes a message a dead letter. It need not have a readable record.
local function bury(member, id, key, cause)
  leave(member, id, key)
  clear(record(id), 'hash')
  redis.call('HDEL', record(id), 'owner', 'wait', 'nudged')
  redis.call('HSETNX', record(id), 'key', key)
  redis.call('HSET', record(id), 'state', 'dead', 'cause', cause, 'ended', now)
  redis.call('PEXPIRE', record(id), dead_retention)
  redis.call('ZADD', dead, now, id)
  outlive(dead, dead_retention)
  emptied(key)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', dead, '-inf', now - dead_retention, 'LIMIT', 0, STEPS)) do
    redis.call('ZREM', dead, old)
  end
  count('dead')
end

local function quarantine(member, id, key, why)
  bury(member, id, key, 'quarantined: ' .. why)
end

-- Ends a queued message that is not to be run: as 'expired' or 'cancelled'.
local function give_up(member, id, key, state)
  leave(member, id, key)
  redis.call('HDEL', record(id), 'payload', 'wait', 'nudged')
  redis.call('HSET', record(id), 'state', state, 'ended', now)
  redis.call('PEXPIRE', record(id), retention)
  count(state)
  emptied(key)
end

-- Ends the messages that have become too old to be started. Answers how many
-- expired, and how many were junk.
local function sweep()
  local expired, junk = 0, 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, STEPS)) do
    local id, key = split(member)
    local m, why = load(id, key)
    if m and m.not_after > now then
      redis.call('ZREM', open, member) -- the score was junk: the record is right
      reopen(member, m)
    elseif m then
      give_up(member, id, key, 'expired')
      expired = expired + 1
    elseif kind_of(record(id)) == 'none' then
      leave(member, id, key) -- remembered for as long as it had to be: no worker came by
      expired = expired + 1
    else
      quarantine(member, id, key, why)
      junk = junk + 1
    end
  end
  return expired, junk
end

-- Gives a queued message to a worker, for the length of its claim lease. The caller
-- has taken it out of due, and takes it out of open and into running.
local function start(id, m, token, lease)
  m.attempts = m.attempts + 1
  if m.wait or m.nudged then
    redis.call('HDEL', record(id), 'wait', 'nudged')
  end
  redis.call('HSET', record(id), 'state', 'running', 'owner', token, 'attempts', m.attempts)
  if now + lease > m.not_after then
    keep(record(id), life(m, lease))
    if m.key ~= '' then
      outlive(line(m.key), life(m, lease))
    end
  end
  outlive(running, life(m, lease))
end

-- Gives a message that was taken out of due to a worker, or has what is no such message
-- out of the way. Answers 'taken', 'expired', 'junk' or nothing; its id and its record.
local function take(member, token, lease)
  local id, key = split(member)
  local m, why = load(id, key, true)
  if not m then
    local not_after = redis.call('ZSCORE', open, member)
    if not_after and score_of(not_after) <= now and kind_of(record(id)) == 'none' then
      leave(member, id, key)
      return 'expired'
    end
    quarantine(member, id, key, why)
    return 'junk'
  elseif m.state ~= 'queued' then -- it runs, or has ended
    if m.state ~= 'running' then
      leave(member, id, key)
    end
    return
  elseif m.not_after <= now then
    give_up(member, id, key, 'expired')
    return 'expired'
  elseif not m.payload then
    quarantine(member, id, key, 'the record has no payload')
    return 'junk'
  end
  if key ~= '' and redis.pcall('LINDEX', line(key), 0) ~= id then
    -- Part of the line was lost. It goes to the end of what there is.
    clear(line(key), 'list')
    redis.call('LREM', line(key), 0, id)
    redis.call('RPUSH', line(key), id)
    outlive(line(key), life(m))
    advance(key)
    return
  end
  start(id, m, token, lease)
  return 'taken', id, m
end

-- Takes so many messages that are due, but not much more than max_bytes of payload. The
-- i-th taken is of tokens(i). Answers them: {id, record}, and how many had expired, and
-- how many were junk.
local function take_due(want, tokens, lease, max_bytes)
  local taken, bytes, expired, junk = {}, 0, 0, 0
  local members = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, want)
  if #members == 0 then
    return taken, expired, junk
  end
  redis.call('ZREM', due, unpack(members))
  local gone, held, ends = {}, {}, moment(now + lease)
  for _, member in ipairs(members) do
    if bytes >= max_bytes then
      redis.call('ZADD', due, now, member)
    else
      local what, id, m = take(member, tokens(#taken + 1), lease)
      if what == 'taken' then
        taken[#taken + 1] = {id, m}
        bytes = bytes + #m.payload
        gone[#gone + 1] = member
        held[#held + 1] = ends
        held[#held + 1] = member
      elseif what == 'expired' then
        expired = expired + 1
      elseif what == 'junk' then
        junk = junk + 1
      end
    end
  end
  if #gone > 0 then
    redis.call('ZREM', open, unpack(gone))
    redis.call('ZADD', running, unpack(held))
  end
  return taken, expired, junk
end

-- A message as a worker gets it; at last for how many ms it may be started, and how often it was handed back.
local function told(id, m)
  local behind = m.key ~= '' and redis.call('LLEN', line(m.key)) - 1 or 0
  return {id, m.key, m.name, m.payload, m.attempts, m.conflicts, m.losses, m.enqueued, m.not_after, m.principal, behind, m.wait and 1 or 0,
    m.not_after - now, m.handed}
end

local function paused() return redis.call('EXISTS', base .. ':paused') == 1 end

-- 1 when a message is due at this moment, else 0.
local function any_due()
  return #redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)
end
