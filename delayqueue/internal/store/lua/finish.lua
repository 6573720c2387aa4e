-- Reads records, and ends messages; after common.lua.

local MINUTE = 60000
local ENDED_AS = {d = 'done', x = 'dead', E = 'expired', e = 'expired', c = 'cancelled', s = 'superseded'}
local ENDED_AT = string.format('%011x', now)

local endings = {{}, {}, {}} -- of each ring, fields and their values

-- Counts bytes of messages that come or, if there are fewer than none, go.
local function weigh(n) bytes = math.max(0, bytes + n) end

local function split(member)
  local at = member:find(' ', 1, true) or #member + 1
  return member:sub(1, at - 1), member:sub(at + 1)
end

local function first_in(set) return tonumber(redis.call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end

local function key_of(rec) return rec:sub(55, 54 + (tonumber(rec:sub(46, 48), 10) or 0)) end

local function too_old(rec)
  local not_after = rec:byte() == 49 and tonumber(rec:sub(33, 45), 10) -- to the embedded Redis 010 is octal
  return not_after and not_after <= now
end

local function is_long(rec) return rec:sub(3, 3):lower() == 'b' end

-- A message as its record has it: its sequence number, principal and slot, the bytes of its record and payload, and where that begins.
local function read(id, rec)
  local n, p = tonumber(rec:sub(49, 51), 10) or 0, tonumber(rec:sub(52, 54), 10) or 0
  local key = key_of(rec)
  local payload, long = 55 + #key + n + p, is_long(rec)
  return {
    id = id, key = key, number = rec:sub(4, 19), principal = rec:sub(payload - p, payload - 1), payload = payload,
    slot = rec:match('^1[qc]') and 's' .. rec:sub(46, payload - 1) or '', long = long,
    n = #rec + (long and whole(rec:sub(payload)) or 0),
  }
end

-- What the cause in ATTEMPTS takes beside its message.
local function cause_size(tries)
  local _, before = (tries or ''):find('^......%d+ %d+ %d+ %d+ %S* ')
  return before and math.floor(1.25 * (#tries - before)) or 0
end

local function ending_size(n) return 40 + math.floor(1.25 * n) end

-- Rings. A bucket is used for half of the retention, or until it has a third of what its ring may have, and for longer while
-- the next one is needed.

local NAMES = {'results', 'made', 'given'} -- of rings, in the order in which they go when there is no room

-- How many bytes the n-th ring may have: what the others leave. Of those that go before it only the floor counts.
local function most(n)
  local left = HISTORY
  for i, ring in ipairs(rings) do
    if i ~= n then
      left = left - (i < n and math.min(ring.total, FLOOR) or ring.total)
    end
  end
  return math.max(left, FLOOR)
end

local function drop(ring, i)
  redis.call('UNLINK', KEYS[ring.at + i])
  ring.total, ended_bytes = ring.total - ring.size[i], ended_bytes - ring.size[i]
  ring.needed[i], ring.size[i], ring.last[i], ring.changed = 0, 0, 0, true
end

-- Forgets what need not be remembered any more, and the oldest of a ring that has more than it may; of ids, and of the bucket
-- in use, nothing of the last minute: who had no reply sends the same again until then.
local function trim()
  for _, ring in ipairs(rings) do
    for i = 0, BUCKETS - 1 do
      if ring.needed[i] > 0 and ring.needed[i] <= now then
        drop(ring, i)
      end
    end
  end
  for n, ring in ipairs(rings) do
    for step = 1, BUCKETS do
      local i = (ring.current + step) % BUCKETS
      local goes = n == 1 and step < BUCKETS or ring.last[i] + MINUTE <= now
      if goes and ring.size[i] > 0 and ring.total > most(n) then
        drop(ring, i)
      end
    end
  end
end

local function read_rings()
  for n = #rings + 1, 3 do
    local numbers, ring = {}, {name = NAMES[n], at = RESULTS + BUCKETS * (n - 1), needed = {}, size = {}, last = {}, total = 0}
    for word in string.gmatch(own[11 + n] or '', '%S+') do
      numbers[#numbers + 1] = whole(word) or 0
    end
    ring.current, ring.since = (numbers[1] or 0) % BUCKETS, numbers[2] or 0
    for i = 0, BUCKETS - 1 do
      ring.needed[i], ring.size[i] = numbers[3 + 2 * i] or 0, numbers[4 + 2 * i] or 0
      ring.last[i] = numbers[3 + 2 * BUCKETS + i] or now
      ring.total = ring.total + ring.size[i]
    end
    rings[n] = ring
  end
  ended_bytes = rings[1].total + rings[2].total + rings[3].total
  trim()
end

-- Puts fields into the bucket of the n-th ring that is in use, or into the next one if it is time for that, and that is free.
local function put(n, fields, more)
  local ring = rings[n]
  local i = (ring.current + 1) % BUCKETS
  local full = ring.size[ring.current] > 0 and ring.size[ring.current] + more > math.floor(most(n) / 3)
  if (full or ring.since > now or now - ring.since >= retention / 2) and ring.needed[i] == 0 then
    ring.current, ring.since = i, now
  end
  i = ring.current
  local bucket, later = KEYS[ring.at + i], ring.needed[i] < now + retention
  redis.call('HSET', bucket, unpack(fields))
  ring.size[i], ring.total, ended_bytes, ring.changed = ring.size[i] + more, ring.total + more, ended_bytes + more, true
  ring.last[i] = now
  if later then -- in steps, so that it is seldom told
    ring.needed[i] = now + retention + math.min(math.floor(retention / 64), 1000)
  end
  local large = redis.call('HLEN', bucket) > LARGE
  if later or large then
    keep(bucket, math.ceil(2.25 * retention), 0, large)
  end
end

-- Remembers how messages ended. A result for which there is no room at all is not stored. An id that a caller gave may have been
-- forgotten before: then the result of that time goes.
local function remember()
  read_rings()
  local again = {}
  for i = 1, #endings[3], 2 do
    again[#again + 1] = endings[3][i]
  end
  for i = 0, #again > 0 and BUCKETS - 1 or -1 do
    if rings[1].size[i] > 0 and redis.call('HDEL', KEYS[RESULTS + i], unpack(again)) > 0 and redis.call('EXISTS', KEYS[RESULTS + i]) == 0 then
      drop(rings[1], i)
    end
  end
  for n, list in ipairs(endings) do
    local fields, more, room = {}, 0, most(n)
    for i = 1, #list, 2 do
      local size = 24 + ending_size(#list[i] + #list[i + 1]) -- a hash beside none of its message's
      if n == 1 and #fields > 0 and more + size > room / 3 then
        put(n, fields, more)
        trim()
        fields, more = {}, 0
      end
      if n > 1 or size <= room then
        fields[#fields + 1], fields[#fields + 2], more = list[i], list[i + 1], more + size
      end
    end
    if #fields > 0 then
      put(n, fields, more)
      trim()
    end
  end
  endings = {{}, {}, {}}
end

-- Where LETTERS has a dead letter, and the part before its time, which is its group, and of that its name.
local function entry_of(id, ending)
  local k, n, p, texts = ending:match('^%d+ %d+ %d+ %w+ %w+ %d+ (%d+) (%d+) (%d+) (.*)$', 19)
  local name = texts and texts:sub(k + 1, k + n) or ''
  local group = name .. '\n' .. (texts and texts:sub(k + n + 1, k + n + p) or '')
  return group .. '\n' .. ending:sub(2, 12) .. id, group, name
end

-- Counts a dead letter, with sign 1, or no more, with -1: it has entries in MESSAGES, DEAD, DEAD_LETTERS and LETTERS.
local function weigh_letter(id, n, ending, sign)
  local entry, group, name = entry_of(id, ending)
  local size = sign * (message_size(n, id, '', '', '') + ending_size(#ending) + ending_size(2 * #entry))
  letter_bytes = math.max(0, letter_bytes + size)
  for _, member in ipairs({'n' .. name, 'p' .. group}) do
    loads[member] = math.max(0, (loads[member] or tonumber(redis.call('ZSCORE', LOADS, member) or '') or 0) + size)
  end
  if sign > 0 then
    add(LETTERS, entry, '0')
  else
    remove(LETTERS, entry)
  end
end

-- Ends a message, of an id that its caller gave or not: as ENDED_AS has it. Its place in FIFOS is the caller's.
local function finish(id, key, principal, slot, n, tries, how, ending, given, result)
  local size = message_size(n, id, key, principal, slot) + cause_size(tries)
  remove(ATTEMPTS, id)
  weigh(-size)
  use('k', key, -size)
  use('p', principal, -size)
  if slot ~= '' and redis.call('HGET', USES, slot) == id then -- no newer message replaces it
    remove(USES, slot)
  end
  if how == 'x' then
    redis.call('HSETNX', MESSAGES, id, '')
    add(DEAD_LETTERS, id, ending)
    add(DEAD, id, NOW)
    weigh_letter(id, n, ending, 1)
    span = math.max(span, dead_retention)
  else
    remove(MESSAGES, id)
    local list = endings[given and 3 or 2]
    list[#list + 1], list[#list + 2] = id, ending
    if result and result ~= '' then
      list = endings[1]
      list[#list + 1], list[#list + 2] = id, result
    end
  end
  count(ENDED_AS[how])
  ended[#ended + 1] = id
end
