-- Claims messages that are due, for one worker and for the length of its claim
-- lease: have the heads of keys that are free be due → give back the claims of dead workers → remove old dead letters → claim what is due, or end it if it is too old. Each
-- step is bounded: if something is left, the reply says that there is something to do at once.
--
-- If it is sent again with the same token, after a lost reply, it returns the messages
-- that it claimed the first time, with a new lease, and claims no others.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  token of this claim: the owner of the messages. It may end in .<n>, a number that grows
-- ARGV[4]  claim lease, in ms
-- ARGV[5]  how many messages to claim at most
-- ARGV[6]  how many bytes of payload to claim at most, besides the last message's
-- ARGV[7..] keys that may be free: their heads are due if they wait only for their key
-- returns  {ms until there is something to do, or -1 if an earlier call with this token claimed messages and
--           none of them is left; how many were redelivered; how many expired; keys whose last message ended
--           without being run; now in ms; by how much the partition's clock is
--           ahead of Redis's, in ms; how many dead letters were forgotten
--           for lack of room, and after a space the name of the last; for each key that may be free what look() finds; then the messages, as delivery() makes them}
-- #include common.lua
-- #include finish.lua
-- #include ended.lua
-- #include letters.lua
-- #include take.lua
-- #include again.lua
-- #include look.lua
local token, lease, want_most, max_payload = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local HORIZON = 60000 -- the longest wait that is answered
local APART = 10 -- ms
redis.call('HDEL', COUNTS, '')
span = lease + retention

local HEAD = 8
local reply = {0, 0, 0, {}, NOW, back_by, '0 ', {}}
local woken = {} -- key, id, attempts and places of heads that are due only from now on
local looked = {} -- what there is of a key, which may be named twice
for i = 7, #ARGV do
  local key = ARGV[i]
  if not looked[key] then
    local found, id, state, at, places = look(key)
    looked[key] = found
    if found == 2 and at and at > now then
      woken[#woken + 1] = {key, id, state, places}
    else
      free(key, id, state)
    end
  end
  reply[HEAD][i - 6] = looked[key]
end
local session, number = token:match('^(.*)%.(%d+)$')
session, number = session or token, tonumber(number) or 1
local last, taken = (token ~= '' and redis.call('HGET', RECEIPTS, session) or ''):match('^%d+ (%d+)(.*)$')
if last and number <= tonumber(last) then
  for id in string.gmatch(number == tonumber(last) and taken or '', '%S+') do
    reply[#reply + 1] = again(id, token, lease)
  end
  for _, head in ipairs(woken) do
    free(unpack(head, 1, 3))
  end
  reply[1] = #reply == HEAD and -1 or 0
  return conclude(reply)
end

-- Claims that have ended: their workers died, or cannot reach Redis. One of the messages may kill its worker each time: so those
-- without a key become due one after the other, and are not claimed together with it again. What has a key does not wait: its key
-- is reserved only for what could run.
for i, member in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '-inf', NOW, 'LIMIT', '0', STEPS)) do
  local id, key = split(member)
  local state = redis.call('HGET', ATTEMPTS, id) or UNTRIED
  local mark, attempts, conflicts, losses, handed = state:match('^.(......)(%d+) (%d+) (%d+) (%d+) ')
  remove(RUNNING, member)
  local was = state:sub(2)
  local t = read(id, redis.call('HGET', MESSAGES, id) or '')
  note_tries(id, t.key, t.principal, '-', mark and mark .. attempts .. ' ' .. conflicts .. ' ' .. losses + 1 .. ' ' .. handed ..
    '  attempt ' .. attempts .. ' did not end: its worker died, or lost touch with redis' or was, was)
  look_at(member, key == '' and now + (i - 1) * APART or now)
  reply[2] = reply[2] + 1
end

-- Dead letters that were kept for long enough.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEAD, '-inf', now - dead_retention, 'LIMIT', '0', STEPS)) do
  forget(id)
end
local more
reply[7], more = forget_most(STEPS)
tidy()

-- Messages that are due. The receipt is for a call that is sent again; those of the dead are forgotten.
if paused_until <= now then
  local due, ids = {}, {}
  for i = #woken + 1, want_most do
    due[#due + 1] = token
  end
  local first = #reply + 1
  for i, head in ipairs(woken) do
    local key, id, state, places = unpack(head)
    if i <= want_most then -- it need not be written first that it is due
      want(id, id .. ' ' .. key, places, token, NOW)
    else
      free(key, id, state)
    end
  end
  want_due(due)
  start(lease, max_payload, reply)
  for i = first, #reply do
    ids[#ids + 1] = split(reply[i][1])
  end
  if #ids > 0 and redis.call('HSET', RECEIPTS, session, NOW .. ' ' .. number .. ' ' .. table.concat(ids, ' ')) == 1 then
    made, touched[RECEIPTS] = true, true
    local some = redis.call('HRANDFIELD', RECEIPTS, STEPS, 'WITHVALUES')
    for i = 1, #some, 2 do
      if (whole(some[i + 1]:match('^%S+')) or 0) < now - math.max(retention, SLACK) then
        remove(RECEIPTS, some[i])
      end
    end
  end
  tidy(lease)
  reply[3] = counts.expired or 0
end

-- Keys that have no messages any more which nobody ran.
reply[4] = redis.call('ZRANGE', EMPTIED, 0, STEPS - 1)
for _, key in ipairs(reply[4]) do
  remove(EMPTIED, key)
end

read_rings() -- which forgets what need not be remembered any more

local next = now + HORIZON
if paused_until > now then
  next = math.min(next, paused_until)
elseif want_most > 0 then
  next = math.min(next, first_in(WAITING) or next)
end
next = math.min(next, first_in(RUNNING) or next, (more or #reply[4] == STEPS) and now or next)
reply[1] = math.ceil(math.max(0, next - now))
if math.abs(now - (whole(own[8]) or 0)) >= 5000 then -- for enqueue.lua: somebody works
  add(COUNTS, 'claimed', NOW)
end
return conclude(reply)
