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
--             1 when its key has more messages, else 0,
--             the next message, if one was claimed }
--           and at last 1 when a message is due now, else 0
local lease = tonumber(ARGV[3])
clear_sets() -- or a damaged one would stop this half way
local idle = paused() -- nothing is to be claimed

-- Claims the head of a key's line if it is due, or waits for its key. Answers its id
-- and its record.
local function follow(key, token)
  for _ = 1, STEPS do
    local id = redis.call('LINDEX', line(key), 0)
    if not id then
      return
    end
    local member = id .. ' ' .. key
    local m = load(id, key, true)
    if not m or not m.payload or m.state ~= 'queued' or m.due > now and not m.wait then
      advance(key) -- a claim will see what it is
      return
    elseif m.not_after > now then
      start(member, id, m, token, lease)
      return id, m
    end
    give_up(member, id, key, 'expired')
  end
end

local function any(token)
  for _ = 1, STEPS do
    local member = redis.call('ZRANGEBYSCORE', due, '-inf', num(now), 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    local what, id, m = take(member, token, lease)
    if what == 'taken' then
      return id, m
    end
  end
end

-- The rest of the answer for a claim that has ended. What is claimed next is noted in
-- the record of what it follows, should this call be sent again.
local function after(id, key, next, which)
  local nid, m
  if next == '' or idle then
    nid = nil
  elseif which == 'key' then
    nid, m = follow(key, next)
  else
    nid, m = any(next)
  end
  local more = key ~= '' and redis.call('EXISTS', line(key)) or 0
  if nid then
    redis.call('HSET', record(id), 'next', nid)
    return more, told(nid, m)
  end
  if which == 'key' then
    advance(key)
  end
  return more
end

local function again(id, key, next)
  local more = key ~= '' and redis.pcall('EXISTS', line(key)) or 0
  local nid = next ~= '' and redis.call('HGET', record(id), 'next')
  local nkey = nid and redis.pcall('HGET', record(nid), 'key')
  local m = type(nkey) == 'string' and load(nid, nkey, true)
  if m and m.payload and m.state == 'running' and m.owner == next then
    return more, told(nid, m)
  end
  return more
end

local function settle(id, key, token, how, delay, cause, lost, awaits, result, next, which)
  local member = id .. ' ' .. key
  local claim, m = claimed(id, key, token)
  if claim == 'lost' then
    return {0, 0}
  elseif claim == 'settled' then
    return {m.state == 'expired' and 2 or 1, again(id, key, next)}
  end

  redis.call('ZREM', running, member)
  if how == 'done' then
    if key ~= '' then
      drop(id, key)
      if which ~= 'key' then
        advance(key)
      end
    end
    redis.call('HDEL', record(id), 'payload', 'owner', 'nudged')
    redis.call('HSET', record(id), 'state', 'done', 'settled', token, 'ended', num(now), 'losses', m.losses + lost)
    if result ~= '' then
      redis.call('HSET', record(id), 'result', result)
    end
    redis.call('PEXPIRE', record(id), num(retention))
    count('done')
    return {1, after(id, key, next, which)}
  elseif how == 'dead' then
    redis.call('HDEL', record(id), 'owner')
    redis.call('HSET', record(id), 'settled', token, 'losses', m.losses + lost)
    bury(member, id, key, cause)
    return {1, after(id, key, next, which)}
  end

  -- A nudge that came between the conflict and here found the message running and
  -- left its mark: the key was freed since, so do not wait for it.
  local at = now + delay
  if awaits == 1 and m.nudged then
    at = now
  end
  redis.call('HDEL', record(id), 'owner', 'nudged')
  redis.call('HSET', record(id), 'state', 'queued', 'settled', token, 'due', num(at), 'losses', m.losses + lost)
  if how == 'retry' then
    redis.call('HSET', record(id), 'cause', cause)
    count('retried')
    if at >= m.not_after then
      give_up(member, id, key, 'expired')
      return {2, after(id, key, next, which)}
    end
  else
    redis.call('HSET', record(id), 'attempts', math.max(0, m.attempts - 1))
  end
  if how == 'conflict' then
    redis.call('HSET', record(id), 'conflicts', m.conflicts + 1)
  end
  if awaits == 1 then
    redis.call('HSET', record(id), 'wait', 'key')
  end
  reopen(member, m)
  make_due(member, at, life(m))
  return {1, after(id, key, next, which)}
end

local replies = {}
for i = 4, #ARGV, 11 do
  local done, reply = pcall(settle, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]),
    ARGV[i + 5], tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]), ARGV[i + 8], ARGV[i + 9], ARGV[i + 10])
  if not done then -- what is wrong with one claim is not wrong with the others
    reply = {-1, type(reply) == 'table' and reply.err or tostring(reply)}
  end
  replies[#replies + 1] = reply
end
flush()
replies[#replies + 1] = any_due()
return replies
