-- Ends claims, each if the caller holds it; and claims the next message of the same
-- key for a worker who goes on under the key's lock, or what is due. Sent again by the
-- same caller it answers as the first time did.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   claim lease, in ms, of what is claimed next
-- ARGV[4..] of each claim: id, key or '', seq, attempts as they were told, without the first letter, and
--   options one letter each: how it ends
--             d  it is done
--             x  it becomes a dead letter
--             r  the attempt failed; the message goes back
--             c  a key was held: the attempt does not count, the conflict does
--             b  nothing happened, nothing counts
--             h  the worker cannot run it, another may: nothing counts but how often that was
--           l when the attempt lost a lease; w when it waits for its own key: wake.lua makes
--           it due; k to claim the next of its key, which the caller holds, a what is due; else -;
--           b when its payload is in b
--   next    token to claim another message with, or ''
--   and of what is done: its ending, from the token on, with an attempt more; its result
--   of others: the delay before it becomes due again, in ms, and its not_after; the cause
-- returns   for each claim a number, or it and the next message, if one was claimed: now, or when
--           the call was sent before:
--             1 when it was the caller's, 0 when it was not, 2 when it was and the
--             message expired: it would be too old for its next attempt, and does
--             not hold its key's line up until then
--           and at last now in ms, 1 when a message is due now, else 0
-- #include common.lua
-- #include take.lua
local lease = tonumber(ARGV[3])
local BYTES = 4194304 -- of payload that are claimed at most, the last message's aside
local RECENT = 1000 -- how many running messages are looked at, for one that nobody heard of
local SLOT = 250 -- ms: what is handed back becomes due together, so that a claim brings many
local idle = paused > now -- nothing is to be claimed
local brought = 0 -- bytes of payload that were claimed
local sub, byte = string.sub, string.byte
local A, B, D = byte('abd', 1, 3)

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
      running[state and string.match(state, '^[rR]%d+ %d+ %d+ %d+ (%S+)') or ''] = ids[i]
    end
  end
  return running[token] and again(running[token], token, lease)
end

-- The answer to a settlement of a claim that is not the caller's, or not any more.
local function settled_before(i)
  local token, code = string.match(ARGV[i + 3], '^%d+ %d+ %d+ %d+ (%S+)') or '', 0
  local msg = find(ARGV[i])
  if msg and token ~= '' and msg.settled == short(token) then
    code = 1
  end
  for j = 9, 16 do
    local ending = (j == 9 or j > 11) and call('HGET', KEYS[j], ARGV[i])
    if ending and token ~= '' and sub(ending, 13, 18) == short(token) then
      code = sub(ending, 1, 1) == 'e' and 2 or 1
    end
  end
  return {code, ARGV[i + 5] ~= '' and claimed_before(ARGV[i + 5]) or nil}
end

-- Claims the head of a key, which became it just now. Answers what the worker is told.
local function follow(key, token)
  for _ = 1, STEPS do
    local places = line(key, '2')
    local id = places[1] and id_at(places[1], key)
    if not id then
      return
    end
    local msg, why = read(id, key, call('HGET', m, id), call('HGET', r, id))
    if msg and is_running(msg) then
      return -- it was due by itself, and was claimed above
    elseif msg and msg.not_after > now then
      local told = start_again(msg, token, places[2], NOW)
      brought = brought + #msg.rec + #told[6]
      return told
    elseif msg then
      give_up(msg, 'e')
    else
      quarantine(id, key, why)
    end
  end
end

-- Gives a message back to the queue. Answers the code of the reply.
local function give_back(i, how, msg)
  local options = ARGV[i + 4]
  local delay, not_after = string.match(ARGV[i + 6], '^(%d+) (%d+)$')
  local at, waits = now + delay, sub(options, 3, 3) == 'w'
  -- A wake that came between the conflict and here found the message running and
  -- left its mark: the key was freed since, so do not wait for it.
  if waits and msg.flag == 'R' then
    at = now
  end
  if how == 'h' then
    at, msg.handed = math.max(now, at - at % SLOT), msg.handed + 1
  end
  if how == 'r' then
    msg.cause = ARGV[i + 7]
    count('retried')
  else
    msg.attempts = math.max(0, msg.attempts - 1)
  end
  if how == 'c' then
    msg.conflicts = msg.conflicts + 1
  end
  if how == 'r' and at >= msg.not_after then
    give_up(msg, 'e', msg.token)
    return 2
  end
  msg.token, msg.settled = '', short(msg.token)
  call('HSET', r, msg.id, attempts(msg, waits and 'w' or '-'))
  look_at(msg.member, math.min(at, tonumber(not_after)))
  return 1
end

local replies, members, done, big, places, endings, keys, others, anys = {}, {}, {}, {}, {}, {}, {}, {}, {}
local ids, n, at = {}, 0, string.format('%011x', now)
for i = 4, #ARGV, 8 do
  ids[#ids + 1] = ARGV[i]
end
local states = call('HMGET', r, unpack(ids))
for i = 4, #ARGV, 8 do
  n = n + 1
  local id, key, state = ARGV[i], ARGV[i + 1], states[n]
  local how, _, _, which, body = byte(ARGV[i + 4], 1, 5)
  if state and (state == 'r' .. ARGV[i + 3] or state == 'R' .. ARGV[i + 3]) then
    members[#members + 1] = id .. ' ' .. key
    replies[n] = 1
    if how ~= D then
      others[#others + 1] = i
    else
      done[#done + 1] = id
      ended[#ended + 1] = id
      if body == B then
        big[#big + 1] = id
      end
      endings[#endings + 1] = id
      endings[#endings + 1] = 'd' .. at .. ARGV[i + 6]
      if ARGV[i + 7] ~= '' then
        endings[#endings + 1] = id .. ' '
        endings[#endings + 1] = ARGV[i + 7]
      end
      if key ~= '' then
        places[#places + 1] = key .. '\n' .. ARGV[i + 2] .. id
        keys[#keys + 1] = i
      end
    end
    if which == A and ARGV[i + 5] ~= '' and not idle then
      anys[#anys + 1] = i
    end
  else
    replies[n] = settled_before(i)
  end
end

batch('ZREM', w, members)
if #done > 0 then
  batch('HDEL', r, done)
  batch('HDEL', m, done)
  batch('HDEL', b, big)
  batch('ZREM', f, places)
  batch('HSET', ended_bucket(), endings)
  count('done', #done)
end
if #anys > 0 then
  for i, told in ipairs((take(#anys, function(i) return ARGV[anys[i] + 5] end, lease, BYTES))) do
    local at = (anys[i] - 4) / 8 + 1
    replies[at] = {replies[at], told}
  end
end
for _, i in ipairs(others) do
  local key, how, options = ARGV[i + 1], sub(ARGV[i + 4], 1, 1), ARGV[i + 4]
  local id, at = ARGV[i], (i - 4) / 8 + 1
  local msg, why = read(id, key, call('HGET', m, id), states[at])
  if not msg then
    quarantine(id, key, why)
  else
    msg.losses = msg.losses + (sub(options, 2, 2) == 'l' and 1 or 0)
    if how == 'x' then
      msg.cause = ARGV[i + 7]
      bury(msg, msg.token)
    else
      local code = give_back(i, how, msg)
      replies[at] = type(replies[at]) == 'table' and {code, replies[at][2]} or code
    end
  end
  if how == 'x' and key ~= '' then
    keys[#keys + 1] = i
  end
end
local heads = {}
for _, i in ipairs(keys) do
  local key = ARGV[i + 1]
  if sub(ARGV[i + 4], 4, 4) == 'k' and ARGV[i + 5] ~= '' and not idle and brought < BYTES then
    replies[(i - 4) / 8 + 1] = {1, follow(key, ARGV[i + 5])}
  else
    local head = line(key, '1')[1]
    local member = head and id_at(head, key) .. ' ' .. key
    if member and not (#anys > 0 and call('ZSCORE', w, member)) then -- else it was claimed above
      heads[#heads + 1] = NOW
      heads[#heads + 1] = member
    end
  end
end
if #heads > 0 then
  batch('ZADD', z, heads)
  soonest = math.min(soonest or now, now)
end
begin(lease)
if #members > 0 then
  live(lease + retention, z, w, r)
end
flush()
replies[#replies + 1] = NOW
replies[#replies + 1] = #call('ZRANGEBYSCORE', z, '-inf', NOW, 'LIMIT', '0', '1')
return replies
