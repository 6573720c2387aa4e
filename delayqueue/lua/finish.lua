-- Reads records, and ends messages; after common.lua.

local MINUTE = math.min(60000, retention)
local COUNTS = {d = 'done', x = 'dead', E = 'expired', e = 'expired', c = 'cancelled', s = 'superseded'}
local ENDED_AT = string.format('%011x', now)

local endings = {} -- fields of a bucket, and their values
local current, current_since = (whole(own[9]) or 0) % 5, whole(own[10]) or 0 -- the bucket that is in use, and since when

-- Counts bytes of messages, dead letters among them, that come or, if there are fewer than none, go.
local function weigh(n) bytes = math.max(0, bytes + n) end

local function split(member)
  local at = member:find(' ', 1, true) or #member + 1
  return member:sub(1, at - 1), member:sub(at + 1)
end

local function first_in(set) return tonumber(redis.call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end

-- The time and the closed field, in replies for workers.
local function reply_now() return closed and NOW .. ' ' .. closed or NOW end

local function key_of(rec) return rec:sub(55, 54 + (tonumber(rec:sub(46, 48), 10) or 0)) end

local function too_old(rec)
  local not_after = rec:byte() == 49 and tonumber(rec:sub(33, 45), 10) -- to the embedded Redis 010 is octal
  return not_after and not_after <= now
end

-- A message as its record has it: its sequence number, principal and slot, the bytes of its record and payload, and where that begins.
local function read(id, rec)
  local n, p = tonumber(rec:sub(49, 51), 10) or 0, tonumber(rec:sub(52, 54), 10) or 0
  local key = key_of(rec)
  local payload, long = 55 + #key + n + p, rec:sub(3, 3) == 'b'
  return {
    id = id, key = key, number = rec:sub(4, 19), principal = rec:sub(payload - p, payload - 1), payload = payload,
    slot = rec:match('^1[qc]') and 's' .. rec:sub(46, payload - 1) or '', long = long,
    n = #rec + (long and whole(rec:sub(payload)) or 0),
  }
end

-- What the cause in r takes beside its message.
local function cause_size(tries)
  local _, before = (tries or ''):find('^......%d+ %d+ %d+ %d+ %S* ')
  return before and math.floor(1.25 * (#tries - before)) or 0
end

local function ending_size(n) return 40 + math.floor(1.25 * n) end

-- The buckets: until when each is needed, and how many bytes it has. What need not be remembered any more is forgotten; and while
-- all have more than half of the partition's bytes also the oldest, but nothing of the last minute.
local function read_buckets()
  local found = redis.call('HMGET', c, 'until0', 'until1', 'until2', 'until3', 'until4', 'ended0', 'ended1', 'ended2', 'ended3', 'ended4')
  local needed, size = {}, {}
  ended_bytes = 0
  for i = 0, 4 do
    needed[i], size[i] = whole(found[1 + i]) or 0, whole(found[6 + i]) or 0
    ended_bytes = ended_bytes + size[i]
  end
  for step = 1, 5 do -- the oldest first, and the one in use last
    local i = (current + step) % 5
    local early = step < 5 and ended_bytes > max_bytes / 2 and retention - MINUTE or 0
    if needed[i] > 0 and needed[i] - early <= now then
      redis.call('UNLINK', KEYS[11 + i])
      redis.call('HDEL', c, 'until' .. i, 'ended' .. i)
      ended_bytes, needed[i], size[i] = ended_bytes - size[i], 0, 0
    end
  end
  return needed, size
end

-- Remembers how messages ended, in a bucket. That is another one after a quarter of the retention, or when this
-- one has a tenth of the partition's bytes, if what the oldest one has need not be remembered any more.
local function remember()
  local rotates = current_since > now or now - current_since >= retention / 4
  if rotates or ended_bytes > max_bytes / 10 then
    local needed, size = read_buckets()
    local oldest = (current + 1) % 5
    if (rotates or size[current] > max_bytes / 10) and needed[oldest] == 0 then
      add(c, 'bucket', oldest)
      add(c, 'since', NOW)
      current, current_since = oldest, now
    end
  end
  local had = redis.call('HMGET', c, 'until' .. current, 'ended' .. current)
  local bucket, more, later = KEYS[11 + current], 0, (whole(had[1]) or 0) < now + retention
  for i = 1, #endings, 2 do
    more = more + ending_size(#endings[i] + #endings[i + 1])
  end
  ended_bytes = ended_bytes + more
  redis.call('HSET', bucket, unpack(endings))
  add(c, 'ended' .. current, text((whole(had[2]) or 0) + more))
  if later then -- in steps, so that it is seldom told
    add(c, 'until' .. current, text(now + retention + math.min(math.floor(retention / 64), 1000)))
  end
  local large = redis.call('HLEN', bucket) > LARGE
  if later or large then
    keep(bucket, math.ceil(2.25 * retention), 0, large)
  end
  endings = {}
end

-- A dead letter has entries in m, x and y alone.
local function dead_letter_size(id, n, ending) return message_size(n, id, '', '', '') + ending_size(ending) end

-- Ends a message: as COUNTS have it, or as 'm', carried over to another partition. Its place in f is the caller's.
local function finish(id, key, principal, slot, n, tries, how, ending, result)
  local size = message_size(n, id, key, principal, slot) + cause_size(tries)
  remove(r, id)
  use('k', key, -size)
  use('p', principal, -size)
  if slot ~= '' and redis.call('HGET', u, slot) == id then -- no newer message replaces it
    remove(u, slot)
  end
  if how == 'x' then
    redis.call('HSETNX', m, id, '')
    add(y, id, ending)
    add(x, id, NOW)
    weigh(dead_letter_size(id, n, #ending) - size)
    span = math.max(span, dead_retention)
  else
    remove(m, id)
    weigh(-size)
    if how ~= 'm' then
      endings[#endings + 1], endings[#endings + 2] = id, ending
    end
    if result and result ~= '' then
      endings[#endings + 1], endings[#endings + 2] = id .. ' ', result
    end
  end
  if how ~= 'm' then
    count(COUNTS[how])
  end
  ended[#ended + 1] = id
end
