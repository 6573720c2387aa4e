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
-- attempts  r|R|w|- mark:6 attempts conflicts losses handed token cause
--           r: it runs, R: and its key was announced to be free; w: it waits for its key;
--           mark: the end of the token of the claim that was settled last
-- ending    d|x|e|c mark:6 ended:11 attempts conflicts losses enqueued age #result #key #name #principal key name principal cause
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
local retention, dead_retention = tonumber(ARGV[1]), tonumber(ARGV[2])
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

local counts, soonest, seq = {}, nil, nil
local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- The number of the next message that comes: it grows, also if c is lost.
local function next_seq()
  seq = math.max(micros, (seq or whole(call('HGET', c, 'seq')) or 0) + 1)
  return string.format('%.0f', seq)
end

local function look_at(member, at)
  call('ZADD', z, at, member)
  soonest = math.min(soonest or at, at)
end

-- Has a key expire when nobody has used it for ms. While there are many messages none does:
-- Redis would stand still until all of them are freed.
local large
local function keep(name, ms)
  if large == nil then
    large = call('HLEN', m) > LARGE
  end
  if large then
    call('PERSIST', name)
  elseif call('PTTL', name) < ms then
    call('PEXPIRE', name, ms + math.floor(math.min(ms / 4, SLACK)))
  end
end

-- Has the keys of open messages, these of them at least, live for ms more, and as long as m.
local function live(ms, ...)
  local left = call('PTTL', m)
  for _, name in ipairs(left < ms and {m, b, z, w, r, f} or {...}) do
    if left < ms then
      keep(name, ms)
    elseif call('PTTL', name) == -1 then
      call('PEXPIRE', name, left)
    end
  end
end

-- Wakes the workers: something is due earlier than before, or a key has no messages
-- any more that nobody ran.
local function announce(key)
  local base = sub(m, 1, -3)
  local queue = string.gsub(base, '({[^/}]*)/[^}]*}$', '%1}') -- of a partition's name
  redis.pcall('PUBLISH', queue .. ':wake', key and base .. ' ' .. key or base) -- channels may be forbidden
end

local function first_in(set) return tonumber(call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end

-- Writes what was put off to the end of the script, and wakes the workers if what
-- it made due is now the first: else they have an earlier one to wake for.
local function flush()
  for what, n in pairs(counts) do
    redis.pcall('HINCRBY', c, what, n) -- junk stays as it is
  end
  if seq then
    call('HSET', c, 'seq', string.format('%.0f', seq))
    keep(c, math.max(dead_retention, 3 * retention, SLACK))
  end
  if soonest and first_in(z) == soonest then
    announce()
  end
end
