-- How messages end, after common.lua.

local MINUTE = math.min(60000, retention)
local UNTRIED = '-------0 0 0 0  ' -- attempts
local COUNTS = {d = 'done', x = 'dead', E = 'expired', e = 'expired', c = 'cancelled', s = 'superseded'}
local ENDED_AT = string.format('%011x', now)

local endings = {} -- fields of a bucket, and their values
local unrun = {} -- keys that may have another head: one ended unrun, 'ended', or is halted no more, 'resumed'

-- What the cause in r takes beside its message.
local function cause_size(tries)
  local cause = tries and tries:match('^......%d+ %d+ %d+ %d+ %S* (.*)$')
  return cause and math.floor(1.25 * #cause) or 0
end

local function ending_size(n) return 40 + math.floor(1.25 * n) end

-- The buckets: which is in use, since when; of each until when it is needed, and how many bytes it has.
local function read_buckets()
  local found = redis.call('HMGET', c, 'bucket', 'since', 'until0', 'until1', 'until2', 'until3', 'until4',
    'ended0', 'ended1', 'ended2', 'ended3', 'ended4')
  local all = {at = (whole(found[1]) or 0) % 5, since = whole(found[2]) or 0, needed = {}, bytes = {}}
  local sum = 0
  for i = 0, 4 do
    all.needed[i], all.bytes[i] = whole(found[3 + i]) or 0, whole(found[8 + i]) or 0
    sum = sum + all.bytes[i]
  end
  ended_bytes = sum
  return all
end

-- Whether a bucket need not be remembered; early: since nothing has ended into it for a minute.
local function is_needless(all, i, early) return all.needed[i] - (early and retention - MINUTE or 0) <= now end

-- Forgets what ended into a bucket.
local function drop(all, i)
  redis.call('UNLINK', KEYS[11 + i])
  redis.call('HDEL', c, 'until' .. i, 'ended' .. i)
  ended_bytes = ended_bytes - all.bytes[i]
  all.needed[i], all.bytes[i] = 0, 0
end

-- Forgets the oldest of what ended while it takes more than half of the partition's bytes, but nothing of the last minute.
local function make_room(all)
  for step = 1, 4 do
    local i = (all.at + step) % 5
    if ended_bytes > max_bytes / 2 and all.needed[i] > 0 and is_needless(all, i, true) then
      drop(all, i)
    end
  end
end

-- Remembers how messages ended, in a bucket. That is another one after a quarter of the retention, or when this
-- one has a tenth of the partition's bytes, if what the oldest one has need not be remembered any more.
local function remember()
  local all = read_buckets()
  make_room(all)
  local at, oldest, full = all.at, (all.at + 1) % 5, all.bytes[all.at] > max_bytes / 10
  if (full or all.since > now or now - all.since >= retention / 4) and is_needless(all, oldest) then
    drop(all, oldest)
    add(c, 'bucket', oldest)
    add(c, 'since', NOW)
    at = oldest
  end
  local more = 0
  for i = 1, #endings, 2 do
    more = more + ending_size(#endings[i] + #endings[i + 1])
  end
  ended_bytes = ended_bytes + more
  add(c, 'ended' .. at, text(all.bytes[at] + more))
  add(c, 'until' .. at, text(math.max(all.needed[at], now + retention)))
  local bucket = KEYS[11 + at]
  redis.call('HSET', bucket, unpack(endings))
  endings = {}
  keep(bucket, math.ceil(2.25 * retention), 0, redis.call('HLEN', bucket) > LARGE)
end

-- Has the head of a key's FIFO be due: now, or if it is not known when to look at it. Reports whether there is one.
local function advance(key, at_once)
  local head = line(key, '1')[1]
  local member = head and id_at(head, key) .. ' ' .. key
  if head and not redis.call('ZSCORE', w, member) and (at_once or not redis.call('ZSCORE', z, member)) then
    look_at(member, now)
  end
  return head
end

-- Writes how messages ended, applies, and has the heads of the keys that have another one be due. A key that has no message any
-- more is announced: nobody is left to have it before others. A claim tells a worker if nobody heard.
local function tidy()
  if #endings > 0 then
    remember()
  end
  apply()
  for key, why in pairs(unrun) do
    if not advance(key, why == 'resumed') then
      announce(key)
      if redis.call('ZCARD', e) < LARGE then
        add(e, key, NOW)
      end
    end
  end
  unrun = {}
  apply()
end

local function key_of(rec) return rec:sub(55, 54 + (tonumber(rec:sub(46, 48), 10) or 0)) end

local function too_old(rec)
  local not_after = rec:sub(1, 1) == '1' and tonumber(rec:sub(33, 45), 10) -- to the embedded Redis 010 is octal
  return not_after and not_after <= now
end

-- Writes to r what became of a message that was there as it was, or was not. Without room its cause is not kept.
local function note_tries(id, key, principal, flag, tries, was)
  local counted = cause_size(was)
  local more = cause_size(tries) - counted
  if more > 0 and bytes + ended_bytes + more > max_bytes then
    tries = tries:match('^......%d+ %d+ %d+ %d+ %S* ') or tries
    more = cause_size(tries) - counted
  end
  weigh(more)
  use('k', key, more)
  use('p', principal, more)
  add(r, id, flag .. tries)
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

local function size_of(t) return message_size(t.n, t.id, t.key, t.principal, t.slot) end

-- A dead letter has entries in m, x and y alone.
local function letter_size(id, n, ending) return message_size(n, id, '', '', '') + ending_size(ending) end

-- The message that a newer one replaces, if no handler was given it yet.
local function replaceable(slot, key)
  apply()
  local id = redis.call('HGET', u, slot)
  local rec, state = id and redis.call('HGET', m, id), id and redis.call('HGET', r, id) or UNTRIED
  local fresh = rec and rec:match('^1[qc]') and state:match('^[w-]......0 %d+ 0 0 ')
  if fresh and not too_old(rec) and redis.call('HEXISTS', y, id) == 0 then
    for _, place in ipairs({rec:sub(4, 19), '~', '\127'}) do
      if redis.call('ZSCORE', f, key .. '\n' .. place .. id) then
        return {
          id = id, rec = rec, state = state, place = place, number = rec:sub(4, 19), size = size_of(read(id, rec)) + cause_size(state:sub(2)),
          due = tonumber(redis.call('ZSCORE', z, id .. ' ' .. key) or ''),
        }
      end
    end
  end
end

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
    weigh(letter_size(id, n, #ending) - size)
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

-- Ends a queued message that is not to be run: as 'e', expired, 'c', cancelled, or 's', superseded by another one.
local function discard(id, key, rec, how, by)
  local t, state = read(id, rec), redis.call('HGET', r, id)
  local tried, cause = (state or UNTRIED):match('^.(......%d+ %d+ %d+ %d+ )%S* (.*)$')
  if not tried then -- junk
    tried, cause = UNTRIED:sub(2, -2), ''
  end
  remove(z, id .. ' ' .. key)
  if t.long then
    freed[#freed + 1] = id
  end
  if key ~= '' then
    for _, place in ipairs({t.number, '~', '\127'}) do
      remove(f, key .. '\n' .. place .. id)
    end
    unrun[key] = unrun[key] or 'ended'
  end
  finish(id, key, t.principal, t.slot, t.n, state and state:sub(2), how,
    how .. ENDED_AT .. tried:sub(1, 6) .. rec:sub(20, t.payload - 1) .. tried:sub(7) .. ' ' .. (by or cause))
end

-- Ends the halt of a key if a dead letter made it. Reports whether it did.
local function resume(key, id)
  local halt = redis.call('HGET', h, key)
  if halt and halt:sub(2) == id then
    remove(h, key)
    unrun[key] = 'resumed'
    return true
  end
end

-- Forgets a dead letter.
local function forget(id)
  local t = read(id, redis.call('HGET', m, id) or '')
  weigh(-letter_size(id, t.n, redis.call('HSTRLEN', y, id)))
  remove(x, id)
  remove(y, id)
  remove(m, id)
  if t.long then
    freed[#freed + 1] = id
  end
  resume(t.key, id)
end
