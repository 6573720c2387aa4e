-- What the scripts of a queue share; it is put in front of each of them.
--
-- KEYS[1]  the queue's base name. No key has it: its hash tag sends the script
--          to the slot that holds all keys of the queue. Which of them it needs
--          is known only while it runs.
-- ARGV[1]  how long done and expired messages are remembered, in ms
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
-- <base>:junk:<...>    what was found where something else had to be
--
-- A member is '<id> <key>'. The key in it lets a message leave the line of its
-- key even when its record is gone or unreadable.
--
-- Every script makes its first write with a command that Redis runs when its
-- memory is full, or with the one that grows the queue: so it is refused as a
-- whole or runs as a whole, never in part.
local base = KEYS[1]
local due, open, running, dead = base .. ':due', base .. ':open', base .. ':running', base .. ':dead'
local retention, dead_retention = tonumber(ARGV[1]), tonumber(ARGV[2])
local STEPS = 20 -- how many messages a script tidies up at most

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function num(n) return string.format('%.0f', n) end

local function record(id) return base .. ':message:' .. id end

local function line(key) return base .. ':order:' .. key end

local function kind_of(name)
  local t = redis.call('TYPE', name)
  return type(t) == 'table' and t.ok or t
end

-- Makes a key live for ms more, at least.
local function keep(name, ms)
  if redis.call('PTTL', name) < ms then
    redis.call('PEXPIRE', name, num(ms))
  end
end

-- Moves away what has the name but not the type of one of our keys.
local function clear(name, kind)
  local found = kind_of(name)
  if found ~= kind and found ~= 'none' then
    local aside = base .. ':junk:' .. string.sub(name, #base + 2)
    redis.call('RENAME', name, aside)
    redis.call('PEXPIRE', aside, num(dead_retention))
  end
end

local function clear_sets()
  for _, set in ipairs({due, open, running, dead}) do
    clear(set, 'zset')
  end
end

-- A non-negative whole number as these scripts write it; nil for anything else.
local function whole(s)
  return type(s) == 'string' and #s < 16 and string.match(s, '^%d+$') and tonumber(s) or nil
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

-- Reads the record of a message, without its payload. Answers nil and the
-- reason when it is not one.
local function load(id, key)
  local kind = kind_of(record(id))
  if kind == 'none' then
    return nil, 'the record is missing'
  elseif kind ~= 'hash' then
    return nil, 'the record is a ' .. kind .. ', not a hash'
  end
  local f = redis.call('HMGET', record(id), 'key', 'name', 'state', 'owner', 'settled', 'wait', 'nudged',
    'attempts', 'conflicts', 'losses', 'enqueued', 'due', 'not_after')
  local m = {
    key = f[1], name = f[2], state = f[3], owner = f[4], settled = f[5], wait = f[6], nudged = f[7],
    attempts = whole(f[8]), conflicts = whole(f[9]), losses = whole(f[10]),
    enqueued = whole(f[11]), due = whole(f[12]), not_after = whole(f[13]),
  }
  for _, field in ipairs({'key', 'name', 'state'}) do
    if not m[field] then
      return nil, 'the record has no ' .. field
    end
  end
  for _, field in ipairs({'attempts', 'conflicts', 'losses', 'enqueued', 'due', 'not_after'}) do
    if not m[field] then
      return nil, "the record's " .. field .. ' is not a number'
    end
  end
  if m.key ~= key then
    return nil, 'the record is of another key'
  end
  return m
end

-- Sets the end of a claim. It takes the entry out first: that Redis does also
-- when its memory is full.
local function hold(member, id, till)
  redis.call('ZREM', running, member)
  redis.call('ZADD', running, num(till), member)
  keep(running, redis.call('PTTL', record(id)))
end

-- Makes an open message due, and wakes the workers unless they have an earlier
-- one to wake for.
local function make_due(member, at)
  redis.call('ZADD', due, num(at), member)
  keep(due, redis.call('PTTL', open))
  if redis.call('ZRANGE', due, 0, 0)[1] == member then
    redis.call('PUBLISH', base .. ':wake', '')
  end
end

-- Makes an open message due at the time that its record says.
local function schedule(member, id)
  local at = redis.pcall('HGET', record(id), 'due') -- an error is no number: due now
  make_due(member, math.max(now, whole(at) or now))
end

-- Makes the head of a key's line due, unless it is due already or runs. Ids that
-- are of no message any more are dropped from the line.
local function advance(key)
  for _ = 1, STEPS do
    local head = redis.call('LINDEX', line(key), 0)
    if not head then
      return
    end
    local member = head .. ' ' .. key
    if redis.call('ZSCORE', running, member) or redis.call('ZSCORE', due, member) then
      return
    end
    if redis.call('ZSCORE', open, member) then
      schedule(member, head)
      return
    end
    local m = load(head, key)
    if m and m.state == 'queued' then -- somebody damaged open
      redis.call('ZADD', open, num(m.not_after), member)
      keep(open, redis.call('PTTL', record(head)))
      schedule(member, head)
      return
    end
    redis.call('LPOP', line(key))
  end
end

-- Takes a message that has ended out of the sets and out of its key's line; the
-- next of its key becomes due.
local function leave(member, id, key)
  redis.call('ZREM', running, member)
  redis.call('ZREM', open, member)
  redis.call('ZREM', due, member)
  if key ~= '' then
    clear(line(key), 'list')
    redis.call('LREM', line(key), 1, id)
    advance(key)
  end
end

-- Makes a message a dead letter. It need not have a readable record.
local function bury(member, id, key, cause)
  leave(member, id, key)
  clear(record(id), 'hash')
  redis.call('HDEL', record(id), 'owner', 'wait', 'nudged')
  redis.call('HSETNX', record(id), 'key', key)
  redis.call('HSET', record(id), 'state', 'dead', 'cause', cause, 'died', num(now))
  redis.call('PEXPIRE', record(id), num(dead_retention))
  redis.call('ZADD', dead, num(now), id)
  keep(dead, dead_retention)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', dead, '-inf', num(now - dead_retention), 'LIMIT', 0, STEPS)) do
    redis.call('ZREM', dead, old)
  end
end

local function quarantine(member, id, key, why)
  bury(member, id, key, 'quarantined: ' .. why)
end

local function expire(member, id, key)
  leave(member, id, key)
  redis.call('HDEL', record(id), 'payload', 'wait', 'nudged')
  redis.call('HSET', record(id), 'state', 'expired')
  redis.call('PEXPIRE', record(id), num(retention))
end

-- Ends the messages that have become too old to be started. Answers how many
-- expired, and how many were junk.
local function sweep()
  local expired, junk = 0, 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', num(now), 'LIMIT', 0, STEPS)) do
    local id, key = split(member)
    local m, why = load(id, key)
    if m and m.not_after > now then
      redis.call('ZREM', open, member) -- the score was junk: the record is right
      redis.call('ZADD', open, num(m.not_after), member)
      keep(open, redis.call('PTTL', record(id)))
    elseif m then
      expire(member, id, key)
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

-- Whether the caller holds the claim of the message: 'held', 'settled' if it
-- did until an earlier run of this very call, or 'lost'; and the record.
local function claimed(id, key, token)
  local m = load(id, key)
  if m and m.state == 'running' and m.owner == token then
    return 'held', m
  end
  return m and m.settled == token and 'settled' or 'lost', m
end

-- 1 when a message is due at this moment, else 0.
local function any_due()
  return #redis.call('ZRANGEBYSCORE', due, '-inf', num(now), 'LIMIT', 0, 1)
end
