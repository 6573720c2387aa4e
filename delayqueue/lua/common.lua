-- What the scripts of a queue share: each begins with it. docs/protocol.md has the layout.
--
-- KEYS     all keys of a partition, in the order below: they share a hash tag, so one slot
-- ARGV[1]  how long what ended is remembered, in ms, at least; after a space, how many bytes the
--          partition may take
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
-- u  HASH  what is queued or running: k and a key, p and a principal -> bytes; s and an about
--          without its times -> id of the message that a newer one replaces
-- h  HASH  key -> p|k and the id of the dead letter that halts its messages, or all calls of it
--
-- member    <id> <key>
-- place     <key>\n<seq><id>, or <key>\n~<id> while it is delayed, <key>\n\127<id> while it is quiet
-- record    1 p|-|q|c b|- seq:16 enqueued:13 not_after:13 #key:3 #name:3 #principal:3 key name principal payload
--           p: it is parked because its key is held, q: and a newer one may replace it, c: only that; b: its payload is in b
-- attempts  r|R|w|- mark:6 attempts conflicts losses handed token cause
--           r: it runs, R: and its key was announced to be free; w: it waits for its key;
--           mark: the end of the token of the claim that was settled last
-- ending    d|x|e|c ended:11 mark:6 attempts conflicts losses enqueued age #result #key #name #principal key name principal cause,
--           and a dead letter's result;
--           done, dead, expired or cancelled; ended is hexadecimal; enqueued and age in base 36 in d and x;
--           the age is from when it was enqueued until not_after
--
-- Each message of a key that is queued or running has one place; the first that is not delayed
-- is the key's head, and that alone is in z, or in w. The scripts take a record as it is: its worker
-- makes a dead letter of what it cannot read. A member names the key, so that it can.
--
-- Every script makes its first write with a command that Redis runs when its memory is
-- full, or with the one that grows the queue: so it is refused as a whole or runs as a
-- whole, never in part. Every script ends with flush().
local m, b, z, w, r, f, c, x, y, e, k = unpack(KEYS, 1, 11)
local u, h = KEYS[18], KEYS[19]
local retention, max_bytes = string.match(ARGV[1], '^(%d+) (%d+)$')
retention, max_bytes = tonumber(retention), tonumber(max_bytes)
local dead_retention = tonumber(ARGV[2])
local STEPS = 20 -- how many messages a script tidies up at most, of each kind
local SLACK = 3600000 -- ms that a key lives for longer at most, so that it is seldom told to
local LARGE = 10000 -- messages
local call, sub, match = redis.call, string.sub, string.match

local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
local NOW = string.format('%.0f', now) -- Redis takes longer to make the text of a number

-- Calls a command with what a list has, if it has anything.
local function batch(command, name, list)
  if #list > 0 then
    call(command, name, unpack(list))
  end
end

local function append(list, a, v)
  list[#list + 1] = a
  list[#list + 1] = v
end

-- A non-negative whole number as these scripts write it; nil for anything else.
local function whole(s)
  local n = s and #s < 17 and tonumber(s)
  return n and n >= 0 and n < 1e16 and n % 1 == 0 and n or nil
end

local function split(member)
  local at = string.find(member, ' ', 1, true) or #member + 1
  return sub(member, 1, at - 1), sub(member, at + 1)
end

-- The first places of a key, without what is delayed.
local function line(key, n)
  return call('ZRANGEBYLEX', f, '[' .. key .. '\n', '(' .. key .. '\n~', 'LIMIT', '0', n)
end

local function id_at(place, key) return sub(place, #key + 18) end

local function paused_until() return whole(call('HGET', c, 'paused')) or 0 end

-- '<sequence number> <generation>:<partitions>' when nothing that is new is stored here any more.
local function closed() return call('HGET', c, 'closed') end

-- What workers are told of the time, and of the partition.
local function told_now()
  local since = closed()
  return since and NOW .. ' ' .. since or NOW
end

local counts, soonest, seq, last_seq = {}, nil, nil, nil
local ended = {} -- ids of messages that this script ended
local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- The number of the next message that comes: it grows, also if c is lost.
local function next_seq()
  seq = math.max(micros, (seq or whole(last_seq or call('HGET', c, 'seq')) or 0) + 1)
  return string.format('%.0f', seq)
end

local function look_at(member, at)
  call('ZADD', z, at, member)
  soonest = math.min(soonest or at, at)
end

-- Has a key expire when nobody has used it for ms.
local function keep(name, ms)
  if call('PTTL', name) < ms then
    call('PEXPIRE', name, ms + math.floor(math.min(ms / 4, SLACK)))
  end
end

-- Has the keys of messages, these of them at least, live for ms more, and as long as m. While there
-- are many messages none expires: Redis would stand still until all of them are freed.
local function live(ms, ...)
  local left, large = call('PTTL', m), call('HLEN', m) > LARGE
  for _, name in ipairs((large or left < ms) and {m, b, z, w, r, f, x, y, u, h} or {...}) do
    if large and left >= 0 then
      call('PERSIST', name)
    elseif not large and left < ms then
      keep(name, ms)
    elseif not large and call('PTTL', name) == -1 then
      call('PEXPIRE', name, left)
    end
  end
end

-- Publishes to a channel of the queue, which may be forbidden.
local function publish(channel, message)
  local queue = string.gsub(sub(m, 1, -3), '({[^/}]*)/[^}]*}$', '%1}') -- of a partition's name
  redis.pcall('PUBLISH', queue .. channel, message)
end

-- Wakes the workers: something is due earlier than before, or a key has no messages
-- any more that nobody ran.
local function announce(key)
  local base = sub(m, 1, -3)
  publish(':wake', key and base .. ' ' .. key or base)
end

local function first_in(set) return tonumber(call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end

-- What a message takes of Redis, but for its payload, is some 300 bytes in m, z, f and r, and 40
-- where it is remembered. Redis rounds up, by a quarter at most.
local function message_size(n) return 300 + math.floor(1.25 * n) end
local function ending_size(n) return 40 + math.floor(1.25 * n) end

local uses, used = {}, {} -- by fields of u: their numbers, and which changed

-- Reads fields of u in one go, for use().
local function fetch(fields)
  for i, n in ipairs(#fields > 0 and call('HMGET', u, unpack(fields)) or {}) do
    uses[fields[i]] = whole(n) or 0
  end
end

-- How many bytes the messages take of a key or a principal, with so many more.
local function use(field, more)
  uses[field] = uses[field] or whole(call('HGET', u, field)) or 0
  if more then
    uses[field], used[field] = math.max(0, uses[field] + more), true
  end
  return uses[field]
end

-- Counts the bytes of a message that comes, or if they are negative of one that goes.
local function occupy(key, principal, bytes)
  if key ~= '' then
    use('k' .. key, bytes)
  end
  if principal ~= '' then
    use('p' .. principal, bytes)
  end
end

-- Ends the halt of a key that a dead letter made. Answers whether it did.
local function resume(key, id)
  local halt = key ~= '' and call('HGET', h, key)
  if not halt or sub(halt, 2) ~= id then
    return false
  end
  call('HDEL', h, key)
  local head = line(key, '1')[1]
  local member = head and id_at(head, key) .. ' ' .. key
  if not head then
    announce(key)
  elseif not call('ZSCORE', w, member) then
    look_at(member, now)
  end
  return true
end

-- Forgets a dead letter.
local function forget(id)
  local rec = call('HGET', m, id) or ''
  count('bytes', -message_size(#rec + call('HSTRLEN', b, id)) - ending_size(call('HSTRLEN', y, id)))
  call('ZREM', x, id)
  for _, name in ipairs({y, m, b}) do
    call('HDEL', name, id)
  end
  resume(sub(rec, 55, 54 + (tonumber(sub(rec, 46, 48), 10) or 0)), id)
end

-- Writes what was put off to the end of the script, and wakes the workers if what
-- it made due is now the first: else they have an earlier one to wake for.
local function flush()
  for what, n in pairs(counts) do
    local sum = redis.pcall('HINCRBY', c, what, n)
    if type(sum) ~= 'number' or sum < 0 then -- junk, or lost: counted anew
      call('HSET', c, what, math.max(0, n))
    end
  end
  local some, none = {}, {}
  for field in pairs(used) do
    local list = uses[field] > 0 and some or none
    list[#list + 1] = field
    list[#list + 1] = uses[field] > 0 and uses[field] or nil
  end
  if #some > 0 and call('HSET', u, unpack(some)) > 0 then
    live(retention, u)
  end
  batch('HDEL', u, none)
  if seq then
    call('HSET', c, 'seq', string.format('%.0f', seq))
    keep(c, math.max(dead_retention, 3 * retention, SLACK))
  end
  if #ended > 0 and (whole(call('HGET', c, 'awaited')) or 0) > now then -- somebody waits
    publish(':ended', table.concat(ended, ' '))
  end
  if soonest and first_in(z) == soonest then
    announce()
  end
end
