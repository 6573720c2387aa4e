-- Ends claims, each if the caller holds it; and claims the next message of the same
-- key, if it is due, for a worker who goes on under the key's lock. Sent again by the
-- same caller it answers as the first time did.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   claim lease, in ms, of what is claimed next
-- ARGV[4..] of each claim: id, key or '', token, and
--   how     'done'
--           'dead'      it becomes a dead letter
--           'retry'     the attempt failed; the message goes back
--           'conflict'  a key was held: the attempt does not count, the conflict does
--           'return'    nothing happened, nothing counts
--           'hand back' the worker cannot run it, another may: nothing counts but how often that was
--   delay   of what goes back, before it becomes due, in ms. It keeps its place in
--           the line of its key
--   cause   why it is not done
--   lost    1 when the attempt lost a lease, else 0
--   awaits  1 when it waits for its own key: nudge.lua makes it due, else 0
--   result  of what is done, or ''
--   next    token to claim another message with, or ''
--   which   'key' for the next of its key, which the caller holds; 'any' for what is due
-- returns   for each claim {
--             1 when it was the caller's, 0 when it was not, 2 when it was and the
--             message expired: it would be too old for its next attempt, and does
--             not hold its key's line up until then; -1 when it failed, and why,
--             the next message, if one was claimed: now, or when the call was sent before }
--           and at last 1 when a message is due now, else 0
-- #include common.lua
local lease = tonumber(ARGV[3])
local BYTES = 4194304 -- of payload that are claimed at most, the last message's aside
local RECENT = 100 -- how many running messages are looked at, for one that nobody heard of
clear_sets() -- or a damaged one would stop this half way
local idle = paused() -- nothing is to be claimed

-- Claims the head of a key's line if it is due, or waits for its key. Answers its id
-- and its record.
local brought = 0 -- bytes of payload that were claimed

local function follow(key, token)
  for _ = 1, STEPS do
    local id = redis.call('LINDEX', line(key), 0)
    if not id then
      return
    end
    local member = id .. ' ' .. key
    local m = load(id, key, true)
    local queued = m and m.payload and m.state == 'queued'
    if not queued or m.not_after > now and m.due > now and not m.wait then
      advance(key) -- a claim will see what it is
      return
    elseif m.not_after > now then
      start(id, m, token, lease)
      brought = brought + #m.payload
      redis.call('ZREM', due, member)
      redis.call('ZREM', open, member)
      redis.call('ZADD', running, now + lease, member)
      return id, m
    end
    give_up(member, id, key, 'expired')
  end
end

local ended = now

-- Ends a message that is not to run again. It may be followed by another of its key.
local function finish(c, n)
  local id, key = c.id, c.key
  local nid, m = n and n[1], n and n[2]
  if c.how == 'dead' then
    bury(id .. ' ' .. key, id, key, c.cause)
  elseif key ~= '' then
    drop(id, key)
  end
  if c.which == 'key' and c.next ~= '' and not idle and brought < BYTES then
    nid, m = follow(key, c.next)
  elseif key ~= '' then
    advance(key)
  end
  -- What is claimed next is noted, should this call be sent again.
  if c.how == 'dead' then
    redis.call('HSET', record(id), 'settled', c.token, 'next', nid or '')
  else
    if c.not_after - now > retention / 4 then -- it is not worth the time otherwise
      redis.call('PEXPIRE', record(id), ARGV[1])
    end
    redis.call('HSET', record(id), 'state', 'done', 'ended', moment(ended), 'payload', '', 'settled', c.token, 'next', nid or '')
    if c.result ~= '' then
      redis.call('HSET', record(id), 'result', c.result)
    end
    count('done')
  end
  return {1, nid and told(nid, m)}
end

local SLOT = 250 -- ms: what is handed back becomes due together, so that a claim brings many

-- Gives a message back to the queue.
local function give_back(c, n)
  local id, key, member = c.id, c.key, c.id .. ' ' .. c.key
  local m = load(id, key)
  -- A nudge that came between the conflict and here found the message running and
  -- left its mark: the key was freed since, so do not wait for it.
  local at = now + c.delay
  if c.awaits == 1 and m.nudged then
    at = now
  end
  if c.how == 'hand back' then
    at = math.max(now, at - at % SLOT)
    redis.call('HSET', record(id), 'handed', m.handed + 1)
  end
  local code = 1
  redis.call('HDEL', record(id), 'owner', 'nudged')
  redis.call('HSET', record(id), 'state', 'queued', 'due', at, 'settled', c.token, 'next', n and n[1] or '')
  if c.how == 'retry' then
    redis.call('HSET', record(id), 'cause', c.cause)
    count('retried')
  else
    redis.call('HSET', record(id), 'attempts', math.max(0, m.attempts - 1))
  end
  if c.how == 'conflict' then
    redis.call('HSET', record(id), 'conflicts', m.conflicts + 1)
  end
  if c.how == 'retry' and at >= m.not_after then
    give_up(member, id, key, 'expired')
    code = 2
  else
    if c.awaits == 1 then
      redis.call('HSET', record(id), 'wait', 'key')
    end
    reopen(member, m)
    make_due(member, at, life(m))
  end
  return {code, n and told(n[1], n[2])}
end

local function settle(c, n)
  if c.lost == 1 then
    redis.call('HINCRBY', record(c.id), 'losses', 1)
  end
  if c.how == 'done' or c.how == 'dead' then
    return finish(c, n)
  end
  return give_back(c, n)
end

-- The answer to a call that was sent before. The lease of what it claimed starts anew,
-- as the caller's count of it does. One that became too old meanwhile was not started:
-- its claim runs out.
local function again(c, state, nid)
  local reply = {state == 'expired' and 2 or 1}
  local key = c.next ~= '' and nid and redis.pcall('HGET', record(nid), 'key')
  local m = type(key) == 'string' and load(nid, key, true)
  if m and m.payload and owned(nid, m, c.next) and m.not_after > now then
    keep(record(nid), life(m, lease))
    hold(nid .. ' ' .. key, m, lease)
    reply[2] = told(nid, m)
  end
  return reply
end

-- The answer to a call for a claim that is not the caller's. It may have been sent before
-- and have claimed a message, if its own was claimed and settled by others since: nobody
-- else knows of that one.
local function refuse(c)
  for _, member in ipairs(c.next ~= '' and redis.call('ZREVRANGE', running, 0, RECENT) or {}) do
    local id = split(member)
    if redis.pcall('HGET', record(id), 'owner') == c.next then
      return {0, again(c, '', id)[2]}
    end
  end
  return {0}
end

local replies, held, tokens, members = {}, {}, {}, {}
for i = 4, #ARGV, 11 do
  local c = {
    id = ARGV[i], key = ARGV[i + 1], token = ARGV[i + 2], how = ARGV[i + 3], delay = tonumber(ARGV[i + 4]),
    cause = ARGV[i + 5], lost = tonumber(ARGV[i + 6]), awaits = tonumber(ARGV[i + 7]), result = ARGV[i + 8],
    next = ARGV[i + 9], which = ARGV[i + 10], place = #replies + 1,
  }
  local f = redis.pcall('HMGET', record(c.id), 'state', 'owner', 'key', 'not_after')
  local mine = f[1] == 'running' and f[2] == c.token and f[3] == c.key
  local readable, why = true, nil
  if mine and (c.lost == 1 or c.how ~= 'done' and c.how ~= 'dead') then
    readable, why = load(c.id, c.key)
  end
  if not readable then -- nothing is claimed with it: the call is sent again, and would claim more each time
    replies[c.place] = {-1, why}
  elseif mine then
    held[#held + 1] = c
    c.not_after = whole(f[4] or '-') or 0
    members[#members + 1] = c.id .. ' ' .. c.key
    if c.which == 'any' and c.next ~= '' and not idle then
      tokens[#tokens + 1] = c
    end
    replies[c.place] = 0
  else
    local earlier = redis.pcall('HMGET', record(c.id), 'settled', 'next')
    replies[c.place] = earlier[1] == c.token and again(c, f[1], earlier[2]) or refuse(c)
  end
end

if #held > 0 then
  redis.call('ZREM', running, unpack(members))
end
local nexts = {}
if #tokens > 0 then
  for i, message in ipairs((take_due(#tokens, function(i) return tokens[i].next end, lease, BYTES))) do
    nexts[tokens[i].place] = message
  end
end
for i, c in ipairs(held) do
  local done, reply = pcall(settle, c, nexts[c.place])
  if not done then -- what is wrong with one claim is not wrong with the others
    redis.call('ZADD', running, now + lease, members[i])
    reply = {-1, type(reply) == 'table' and reply.err or tostring(reply)}
  end
  replies[c.place] = reply
end
flush()
replies[#replies + 1] = any_due()
return replies
