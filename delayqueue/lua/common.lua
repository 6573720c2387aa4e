-- What the scripts of a queue share: each begins with it. docs/protocol.md has the layout.
--
-- KEYS     all keys of a partition, in the order below: they share a hash tag, so one slot
-- ARGV[1]  how long done, expired and cancelled messages are remembered, in ms, at least
-- ARGV[2]  how long dead letters are kept, in ms
--
-- m  HASH  id -> record: a message that is queued or running, or a dead letter
-- b  HASH  id -> payload, of those that are too long for a record
-- z  ZSET  member -> when to look next, in ms: keyless messages, heads of keys, delayed ones
-- w  ZSET  member -> end of the claim, in ms: what runs
-- r  HASH  id -> attempts: of those that run, or were tried
-- f  ZSET  place, all of score 0: every key's FIFO, head first; then what is delayed
-- c  HASH  counts, and what the partition has to remember of itself
-- x  ZSET  id -> ms of death
-- y  HASH  id -> ending, of dead letters
-- e  ZSET  key -> ms when the last of its messages ended unrun
-- k  HASH  what a call answered that must not be done twice
-- d0 to d4 HASH  id -> ending, '<id> ' -> result: what ended, in buckets that rotate
-- j  what was found under the name of another of these, and is not of its type
--
-- member    <id> <key>
-- place     <key>\n<seq><id>, or <key>\n~<id> while it is delayed
-- record    1 p|- b|- seq:16 enqueued:13 not_after:13 #key:3 #name:3 #principal:3 key name principal payload
--           p: it is parked because its key is held; b: its payload is in b
-- attempts  r|R|w|- attempts conflicts losses handed token settled cause
--           r: it runs, R: and its key was announced to be free; w: it waits for its key;
--           settled: the end of the token of the claim that was settled last
-- ending    state:1 ended:11 token:6 attempts conflicts losses enqueued age #result #key #name #principal key name principal cause;
--           ended is hexadecimal, enqueued and age in base 36, the age from enqueued until not_after
--
-- A message of a key that is queued or running has one place; the first that is not delayed
-- is the key's head, and that alone is in z, or in w. A member names the key too, so that a
-- message leaves its FIFO even when its record is unreadable.
--
-- Every script makes its first write with a command that Redis runs when its memory is
-- full, or with the one that grows the queue: so it is refused as a whole or runs as a
-- whole, never in part. Every script ends with flush().
local m, b, z, w, r, f, c, x, y, e, k = unpack(KEYS, 1, 11)
local retention, dead_retention = tonumber(ARGV[1]), tonumber(ARGV[2])
local STEPS = 20 -- how many messages a script tidies up at most, of each kind
local SLACK = 3600000 -- ms that a key lives for longer at most, so that it is seldom told to
local HEADER, INLINE = 55, 4096 -- where the key begins in a record; the longest payload in one
-- A record: parked, body, seq, enqueued, not_after, the lengths. As literals, since each call makes them anew.
local RECORD = '^1([p-])([b-])(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d)(%d%d%d)(%d%d%d)'

local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
local NOW = string.format('%.0f', now) -- Redis takes longer to make the text of a number
local base = string.sub(m, 1, -3)
local call = redis.call

-- Calls a command with what a list has, if it has anything.
local function batch(command, name, list)
  if #list > 0 then
    call(command, name, unpack(list))
  end
end

-- A non-negative whole number as these scripts write it; nil for anything else.
local function whole(s)
  local n = s and #s < 17 and tonumber(s)
  return n and n >= 0 and n < 1e16 and n % 1 == 0 and n or nil
end

-- The score of an entry as a number, whatever it is: Lua does not read every spelling of infinity.
local function score_of(s)
  return tonumber(s) or (string.sub(s, 1, 1) == '-' and -math.huge or math.huge)
end

local function split(member)
  local at = string.find(member, ' ', 1, true) or #member + 1
  return string.sub(member, 1, at - 1), string.sub(member, at + 1)
end

local counts, soonest, seq, bucket, bucket_until = {}, nil, nil, nil, nil
local own = call('HMGET', c, 'paused', 'bucket', 'since', 'until') -- what the partition remembers of itself
local paused = whole(own[1]) or 0 -- until then
local ended = {} -- ids of messages that this script ended
local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- The number of the next message that comes: it grows, also if c is lost.
local function next_seq()
  seq = math.max(micros, (seq or whole(call('HGET', c, 'seq')) or 0) + 1)
  return string.format('%.0f', seq)
end

-- Has the keys of open messages, these of them at least, live for ms more.
local function live(ms, ...)
  local left = call('PTTL', m)
  if left < ms then
    for i = 1, 6 do
      call('PEXPIRE', KEYS[i], ms + math.floor(math.min(ms / 4, SLACK)))
    end
  else
    for _, name in ipairs({...}) do
      if call('PTTL', name) == -1 then
        call('PEXPIRE', name, left)
      end
    end
  end
end

local function keep(name, ms)
  if call('PTTL', name) < ms then
    call('PEXPIRE', name, ms + math.floor(math.min(ms / 4, SLACK)))
  end
end

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
    if type(redis.pcall('HINCRBY', c, what, n)) ~= 'number' then -- junk: count anew
      call('HSET', c, what, n)
    end
  end
  if seq then
    call('HSET', c, 'seq', string.format('%.0f', seq))
  end
  if bucket_until then
    call('PEXPIREAT', bucket, bucket_until + retention)
  end
  if seq then
    keep(c, math.max(dead_retention, 3 * retention, SLACK))
  end
  if #ended > 0 and (whole(call('HGET', c, 'awaited')) or 0) > now then -- somebody waits
    redis.pcall('PUBLISH', string.gsub(base, '({[^/}]*)/[^}]*}$', '%1}') .. ':ended', table.concat(ended, ' '))
  end
  if soonest then
    local first = call('ZRANGE', z, '0', '0', 'WITHSCORES')
    if tonumber(first[2]) == soonest then
      announce()
    end
  end
end

local function look_at(member, at)
  call('ZADD', z, at, member)
  soonest = math.min(soonest or at, at)
end

-- The first places of a key, without what is delayed.
local function line(key, n)
  return call('ZRANGEBYLEX', f, '[' .. key .. '\n', '(' .. key .. '\n~', 'LIMIT', '0', n)
end

local function id_at(place, key) return string.sub(place, #key + 18) end

-- Reads a message. Answers nil and the reason if it is none.
local function read(id, key, rec, state)
  if not rec then
    return nil, 'the record is missing'
  end
  local parked, body, number, enqueued, not_after, kl, nl, pl = string.match(rec, RECORD)
  if not parked then
    return nil, 'the record cannot be read'
  end
  kl, nl, pl = tonumber(kl, 10), tonumber(nl, 10), tonumber(pl, 10) -- to the embedded Redis 010 is octal
  if string.sub(rec, HEADER, HEADER + kl - 1) ~= key then
    return nil, 'the record is of another key'
  elseif #rec < HEADER - 1 + kl + nl + pl then
    return nil, 'the record is cut short'
  end
  local msg = {
    id = id, key = key, member = id .. ' ' .. key, rec = rec, body = body == 'b', seq = number, enqueued = enqueued,
    not_after = tonumber(not_after), lengths = kl + nl + pl, flag = '-', token = '', settled = '', cause = '',
    attempts = 0, conflicts = 0, losses = 0, handed = 0, waited = parked == 'p',
  }
  if state then
    local flag, a, n, l, h, token, settled, cause = string.match(state, '^([rRw-])(%d+) (%d+) (%d+) (%d+) (%S*) (%S*) (.*)$')
    a, n, l, h = whole(a), whole(n), whole(l), whole(h)
    if not (a and n and l and h) then
      return nil, 'the record of its attempts cannot be read'
    end
    msg.flag, msg.attempts, msg.conflicts, msg.losses, msg.handed = flag, a, n, l, h
    msg.token, msg.settled, msg.cause = token, settled, cause
    msg.waited = flag == 'w'
  end
  return msg
end

-- What r has of a message.
local function attempts(msg, flag)
  return flag .. msg.attempts .. ' ' .. msg.conflicts .. ' ' .. msg.losses .. ' ' .. msg.handed .. ' ' ..
    msg.token .. ' ' .. msg.settled .. ' ' .. msg.cause
end

-- Reads a message by its id alone.
local function find(id)
  local rec = call('HGET', m, id)
  local kl = rec and tonumber(string.sub(rec, HEADER - 9, HEADER - 7), 10)
  return read(id, kl and string.sub(rec, HEADER, HEADER - 1 + kl) or '', rec, call('HGET', r, id))
end

local function is_running(msg) return msg.flag == 'r' or msg.flag == 'R' end

local function base36(n)
  local s = ''
  repeat
    local digit = n % 36
    s, n = string.sub('0123456789abcdefghijklmnopqrstuvwxyz', digit + 1, digit + 1) .. s, (n - digit) / 36
  until n == 0
  return s
end

local function short(token) return string.sub('------' .. token, -6) end

-- How a message ended, by the settlement with the token if there is one. Of a message that is
-- unreadable only the key is known.
local function ending(state, msg, token)
  local head = state .. string.format('%011x', now) .. short(token or msg.settled or '') .. (msg.attempts or 0) .. ' ' .. (msg.conflicts or 0) .. ' ' .. (msg.losses or 0)
  if not msg.rec then
    return head .. ' 0 0 0 ' .. #msg.key .. ' 0 0 ' .. msg.key .. msg.cause
  end
  local kl, nl, pl = string.match(msg.rec, '(%d%d%d)(%d%d%d)(%d%d%d)', HEADER - 9)
  local enqueued = tonumber(msg.enqueued, 10)
  return head .. ' ' .. base36(enqueued) .. ' ' .. base36(math.max(0, msg.not_after - enqueued)) .. ' 0 ' .. tonumber(kl, 10) .. ' ' .. tonumber(nl, 10) .. ' ' ..
    tonumber(pl, 10) .. ' ' .. string.sub(msg.rec, HEADER, HEADER - 1 + msg.lengths) .. msg.cause
end

-- The bucket for what ends now. It is another one after a quarter of the retention, if
-- what the oldest one has need not be remembered any more.
local function ended_bucket()
  if bucket then
    return bucket
  end
  local at, since, last = (whole(own[2]) or 0) % 5, whole(own[3]), whole(own[4]) or 0
  if not since or since > now or now - since >= retention / 4 then
    local oldest = (at + 1) % 5
    if (whole(call('HGET', c, 'until' .. oldest)) or 0) <= now then
      call('UNLINK', KEYS[12 + oldest])
      call('HSET', c, 'bucket', oldest, 'since', now, 'until' .. at, last)
      at, last = oldest, 0
    end
  end
  bucket = KEYS[12 + at]
  if last < now + retention then
    bucket_until = now + math.ceil(retention * 1.25)
    call('HSET', c, 'until', bucket_until)
  end
  return bucket
end

local function to_key(key)
  local head = line(key, '1')[1]
  local member = head and id_at(head, key) .. ' ' .. key
  if member and not call('ZSCORE', w, member) and not call('ZSCORE', z, member) then
    look_at(member, now)
  end
end

-- Takes a message out of all but m and b, and has its key's next looked at.
local function leave(id, key, number)
  local member = id .. ' ' .. key
  call('ZREM', w, member)
  call('ZREM', z, member)
  call('HDEL', r, id)
  if key == '' then
    return
  end
  local head = not number and line(key, '1')[1]
  if head and id_at(head, key) == id then
    call('ZREM', f, head)
  end
  call('ZREM', f, key .. '\n' .. (number or '') .. id, key .. '\n~' .. id)
  to_key(key)
end

local function forget(id)
  call('HDEL', m, id)
  call('HDEL', b, id)
end

-- Announces a key that has no messages any more which nobody ran: nobody is left to have
-- it before others. A claim tells a worker of it if nobody heard.
local function emptied(key)
  if key ~= '' and #line(key, '1') == 0 then
    announce(key)
    call('ZADD', e, now, key)
    keep(e, retention)
  end
end

-- Makes a message a dead letter.
local function bury(msg, token)
  ended[#ended + 1] = msg.id
  leave(msg.id, msg.key, msg.seq)
  call('HSETNX', m, msg.id, '')
  call('HSET', y, msg.id, ending('x', msg, token))
  call('ZADD', x, now, msg.id)
  live(dead_retention)
  keep(x, dead_retention)
  keep(y, dead_retention)
  emptied(msg.key)
  count('dead')
end

local function quarantine(id, key, why)
  bury({id = id, key = key, cause = 'quarantined: ' .. why})
end

-- Ends a queued message that is not to be run: as 'e', expired, or 'c', cancelled.
local function give_up(msg, state, token)
  ended[#ended + 1] = msg.id
  leave(msg.id, msg.key, msg.seq)
  forget(msg.id)
  call('HSET', ended_bucket(), msg.id, ending(state, msg, token))
  emptied(msg.key)
  count(state == 'e' and 'expired' or 'cancelled')
end
