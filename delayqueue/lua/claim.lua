-- Takes messages that are due, for one worker and for the length of its claim
-- lease. Before that it gives back what dead workers held, and ends what is too
-- old. What cannot be read is made a dead letter. Each step is bounded: what is
-- left is answered as something to do at once.
--
-- Sent again with the same token, after a lost reply, it answers the messages
-- that it took the first time, with a new lease, and takes no others.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  token of this claim: the owner of what it takes
-- ARGV[4]  claim lease, in ms
-- ARGV[5]  how many messages to take at most
-- ARGV[6]  how many attempts a message has
-- ARGV[7]  how many bytes of payload to take at most, the last message's aside
-- returns  {ms until there is something to do, or -1 when nothing is left of what an earlier call
--           with this token took: it is used up; redelivered, expired, buried, keys that have
--           no messages any more which nobody ran, messages, as told() writes them}
-- #include common.lua
local token, lease, want = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_attempts, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local HORIZON = 60000   -- the longest wait that is answered
local LONGEST = 7200000 -- no claim lease comes near it
local AUDIT = 100       -- how many messages an audit looks at
local AUDIT_TTL = 3600000
local LONGEST_LINE = 1000 -- that an audit searches

local receipt = base .. ':claim:' .. token
local reply = {0, 0, 0, 0, {}}
local taken = redis.call('GET', receipt)
if taken then
  for id in string.gmatch(taken, '%S+') do
    local key = redis.pcall('HGET', record(id), 'key')
    local m = type(key) == 'string' and load(id, key, true)
    -- One that became too old meanwhile was not started: its claim runs out.
    if m and m.payload and owned(id, m, token) and m.not_after > now then
      keep(record(id), life(m, lease))
      hold(id .. ' ' .. key, m, lease)
      reply[#reply + 1] = told(id, m)
    end
  end
  if #reply == 5 then
    reply[1] = -1
  end
  flush()
  return reply
end

clear_sets()

-- 1. Claims that have ended: their workers died, or cannot reach Redis.
-- A score beyond every lease is junk, or from before the clock was set back.
local last = redis.call('ZREVRANGE', running, 0, 0, 'WITHSCORES')
if last[1] and score_of(last[2]) > now + LONGEST then
  redis.call('ZREM', running, last[1])
  redis.call('ZADD', running, now + lease, last[1])
end
local ended = redis.call('ZRANGEBYSCORE', running, '-inf', now, 'LIMIT', 0, STEPS)
for _, member in ipairs(ended) do
  local id, key = split(member)
  local m, why = load(id, key)
  if not m then
    quarantine(member, id, key, why)
    reply[4] = reply[4] + 1
  elseif m.state ~= 'running' then
    redis.call('ZREM', running, member)
  else
    local cause = 'attempt ' .. m.attempts .. ' did not end: its worker died, or lost touch with redis'
    redis.call('ZREM', running, member)
    redis.call('HSET', record(id), 'losses', m.losses + 1)
    if m.attempts >= max_attempts then
      bury(member, id, key, cause)
      reply[4] = reply[4] + 1
    else
      redis.call('HDEL', record(id), 'owner')
      redis.call('HSET', record(id), 'state', 'queued', 'due', now, 'cause', cause)
      reopen(member, m)
      make_due(member, now, life(m))
      reply[2] = reply[2] + 1
    end
  end
end

-- 2. Messages that are too old to be started.
local expired, junk = sweep()
reply[3], reply[4] = expired, reply[4] + junk

-- 3. Messages that are due.
local pause = redis.call('PTTL', base .. ':paused')
if pause ~= -2 then
  want = 0
end
if want > 0 then
  local messages, ids, buried = nil, {}, 0
  messages, expired, buried = take_due(want, function() return token end, lease, max_bytes)
  for i, message in ipairs(messages) do
    ids[i] = message[1]
    reply[#reply + 1] = told(message[1], message[2])
  end
  reply[3], reply[4] = reply[3] + expired, reply[4] + buried
  if #ids > 0 then
    redis.call('SET', receipt, table.concat(ids, ' '), 'PX', lease)
  end
end

-- 4. Once a second, an audit of some open messages, in turn: one that lost its
-- turn, because somebody damaged due or its line, gets it back.
local cursor = base .. ':audit'
local queued = redis.call('ZCARD', open)
if queued > 0 and redis.call('PTTL', cursor) <= AUDIT_TTL - 1000 then
  redis.call('PEXPIRE', cursor, AUDIT_TTL)
  local from = redis.pcall('INCRBY', cursor, AUDIT)
  if type(from) ~= 'number' then -- junk
    redis.call('DEL', cursor)
    from = 0
  end
  redis.call('PEXPIRE', cursor, AUDIT_TTL)
  from = from % queued
  local rebuilt = {} -- the lines that were gone
  for _, member in ipairs(redis.call('ZRANGE', open, from, from + AUDIT - 1)) do
    local id, key = split(member)
    if key ~= '' then
      clear(line(key), 'list')
      rebuilt[key] = rebuilt[key] or redis.call('EXISTS', line(key)) == 0
      if rebuilt[key] then
        redis.call('RPUSH', line(key), id)
        outlive(line(key), redis.call('PTTL', open))
      elseif redis.call('LLEN', line(key)) <= LONGEST_LINE and not redis.call('LPOS', line(key), id) then
        redis.call('RPUSH', line(key), id)
        outlive(line(key), redis.call('PTTL', open))
      end
      advance(key)
    end
    if (key == '' or redis.call('LINDEX', line(key), 0) == id) and misplaced(member, id) then
      schedule(member, id)
    end
  end
end

-- 5. Keys that have no messages any more which nobody ran.
local emptied_keys = redis.pcall('ZRANGE', base .. ':emptied', 0, STEPS - 1)
if #emptied_keys > 0 then
  redis.call('ZREM', base .. ':emptied', unpack(emptied_keys))
  reply[5] = emptied_keys
end

local next = now + (pause >= 0 and math.min(pause + 1, HORIZON) or HORIZON)
local sets = {want > 0 and due or nil}
if queued > 0 then
  sets[#sets + 1] = open
end
if last[1] or #reply > 5 then
  sets[#sets + 1] = running
end
for _, set in ipairs(sets) do
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if first[1] then
    next = math.min(next, score_of(first[2]))
  end
end
if #emptied_keys == STEPS then
  next = now
end
reply[1] = math.ceil(math.max(0, next - now))
flush()
return reply
