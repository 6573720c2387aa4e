-- Takes messages that are due, for one worker and for the length of its claim
-- lease. Before that it gives back what dead workers held. What is too old is
-- ended, and what cannot be read is made a dead letter. Each step is bounded: what
-- is left is answered as something to do at once.
--
-- Sent again with the same token, after a lost reply, it answers the messages
-- that it took the first time, with a new lease, and takes no others.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  token of this claim: the owner of what it takes. It may end in .<n>, which grows
-- ARGV[4]  claim lease, in ms
-- ARGV[5]  how many messages to take at most
-- ARGV[6]  how many attempts a message has
-- ARGV[7]  how many bytes of payload to take at most, the last message's aside
-- returns  {ms until there is something to do, or -1 when nothing is left of what an earlier call
--           with this token took: it is used up; redelivered, expired, buried, keys that have
--           no messages any more which nobody ran, now in ms, messages as start() tells them}
-- #include common.lua
-- #include take.lua
-- #include receipt.lua
local token, lease, want = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_attempts, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local HORIZON = 60000   -- the longest wait that is answered
local LONGEST = 7200000 -- no claim lease comes near it

local reply = {0, 0, 0, 0, {}, NOW}
local session, turn = string.match(token, '^(.*)%.(%d+)$')
session, turn = session or token, tonumber(turn) or 1
local last, taken = string.match(token ~= '' and call('HGET', k, session) or '', '^%d+ (%d+)(.*)$')
if last and turn <= tonumber(last) then
  for id in string.gmatch(turn == tonumber(last) and taken or '', '%S+') do
    reply[#reply + 1] = again(id, token, lease)
  end
  reply[1] = #reply == 6 and -1 or 0
  flush()
  return reply
end

-- 1. Claims that have ended: their workers died, or cannot reach Redis.
-- A score beyond every lease is junk, or from before the clock was set back.
local latest = call('ZREVRANGE', w, '0', '0', 'WITHSCORES')
if latest[1] and score_of(latest[2]) > now + LONGEST then
  call('ZREM', w, latest[1])
  call('ZADD', w, now + lease, latest[1])
end
for _, member in ipairs(call('ZRANGEBYSCORE', w, '-inf', NOW, 'LIMIT', '0', STEPS)) do
  local id, key = split(member)
  local msg, why = read(id, key, call('HGET', m, id), call('HGET', r, id))
  call('ZREM', w, member)
  if not msg then
    quarantine(id, key, why)
    reply[4] = reply[4] + 1
  else
    msg.cause = 'attempt ' .. msg.attempts .. ' did not end: its worker died, or lost touch with redis'
    msg.losses, msg.token = msg.losses + 1, ''
    if msg.attempts >= max_attempts then
      bury(msg)
      reply[4] = reply[4] + 1
    else
      call('HSET', r, id, attempts(msg, '-'))
      look_at(member, now)
      live(retention, z)
      reply[2] = reply[2] + 1
    end
  end
end

-- 2. Dead letters that were kept for long enough.
local old = call('ZRANGEBYSCORE', x, '-inf', now - dead_retention, 'LIMIT', '0', STEPS)
batch('ZREM', x, old)
for _, name in ipairs({y, m, b}) do
  batch('HDEL', name, old)
end

-- 3. Messages that are due.
if want > 0 and paused <= now then
  local expired, junk
  taken, expired, junk = take(want, function() return token end, lease, max_bytes)
  local ids = {}
  for i, told in ipairs(taken) do
    ids[i] = told[1]
    reply[#reply + 1] = told
  end
  reply[3], reply[4] = expired, reply[4] + junk
  if #ids > 0 then
    live(lease + retention, w, r)
    note(session, NOW .. ' ' .. turn .. ' ' .. table.concat(ids, ' '))
  end
end

-- 4. Keys that have no messages any more which nobody ran.
local unrun = call('ZRANGE', e, 0, STEPS - 1)
batch('ZREM', e, unrun)
reply[5] = unrun

local next = now + (paused > now and math.min(paused - now, HORIZON) or HORIZON)
for _, set in ipairs({w, want > 0 and paused <= now and z or nil}) do
  local first = call('ZRANGE', set, '0', '0', 'WITHSCORES')
  next = first[1] and math.min(next, score_of(first[2])) or next
end
if #unrun == STEPS then
  next = now
end
reply[1] = math.ceil(math.max(0, next - now))
if math.abs(now - (whole(call('HGET', c, 'claimed')) or 0)) >= 5000 then -- for enqueue.lua: somebody works
  call('HDEL', c, 'claimed')
  call('HSET', c, 'claimed', NOW)
end
keep(c, math.max(dead_retention, 3 * retention, SLACK))
flush()
return reply
