-- How messages end that nobody runs, after common.lua.

local MINUTE = math.min(60000, retention)
local GIVEN_UP = {e = 'expired', c = 'cancelled', s = 'superseded'}

-- Whether nothing has ended into a bucket for a minute.
local function is_aged(i) return (whole(call('HGET', c, 'closed' .. i)) or 0) + MINUTE <= now end

-- Remembers how messages ended, in a bucket. That is another one after a quarter of the
-- retention, if what the oldest one has need not be remembered any more. It is another one
-- sooner when this one has a tenth of the partition's bytes, and the oldest a minute's age.
local function remember(endings)
  local own = call('HMGET', c, 'bucket', 'since', 'until0', 'until1', 'until2', 'until3', 'until4')
  local at, since = (whole(own[1]) or 0) % 5, whole(own[2])
  local oldest = (at + 1) % 5
  if (not since or since > now or now - since >= retention / 4) and
    ((whole(own[3 + oldest]) or 0) <= now or since == 0 and is_aged(oldest)) then
    call('UNLINK', KEYS[12 + oldest])
    call('HSET', c, 'bucket', oldest, 'since', NOW, 'ended' .. oldest, 0, 'closed' .. at, NOW)
    at, own[3 + oldest] = oldest, false
  end
  batch('HSET', KEYS[12 + at], endings)
  local bytes = 0
  for i = 1, #endings, 2 do
    bytes = bytes + ending_size(#endings[i] + #endings[i + 1])
  end
  local sum = redis.pcall('HINCRBY', c, 'ended' .. at, bytes)
  if type(sum) ~= 'number' then -- junk: counted anew
    call('HSET', c, 'ended' .. at, bytes)
  elseif sum > max_bytes / 10 then
    call('HSET', c, 'since', 0)
  end
  if (whole(own[3 + at]) or 0) < now + retention then
    local needed = now + math.ceil(retention * 1.25)
    call('HSET', c, 'until' .. at, needed)
    call('PEXPIREAT', KEYS[12 + at], needed + retention)
  end
end

local UNTRIED = '-------0 0 0 0  ' -- attempts

local function key_of(rec) return sub(rec, 55, 54 + (tonumber(sub(rec, 46, 48), 10) or 0)) end

local function too_old(rec)
  local not_after = sub(rec, 1, 1) == '1' and tonumber(sub(rec, 33, 45), 10) -- to the embedded Redis 010 is octal
  return not_after and not_after <= now
end

local function is_running(state)
  local flag = state and sub(state, 1, 1)
  return flag == 'r' or flag == 'R'
end

-- What a record has of its message, from the lengths on, without a payload; its principal. The
-- lengths begin at a byte.
local function about(rec, from)
  local k, n, p = match(rec, '^(%d%d%d)(%d%d%d)(%d%d%d)', from)
  if not k then
    return '', ''
  end
  k, n, p = from + 9 + tonumber(k, 10), tonumber(n, 10), tonumber(p, 10)
  return sub(rec, from, k + n + p - 1), sub(rec, k + n, k + n + p - 1)
end

local function size_of(id, rec)
  return message_size(#rec + (sub(rec, 3, 3) == 'b' and call('HSTRLEN', b, id) or 0))
end

-- Ends the time in which a newer message replaces this one, if it may.
local function settle_slot(id, slot)
  if slot ~= '' and call('HGET', u, slot) == id then
    call('HDEL', u, slot)
  end
end

-- The message that a newer one replaces, if no handler was given it yet: its id, its record,
-- what r has of it, and what its place has before its id.
local function replaceable(slot, key)
  local id = call('HGET', u, slot)
  local rec, state = id and call('HGET', m, id), id and call('HGET', r, id) or UNTRIED
  if rec and match(rec, '^1[qc]') and match(state, '^[w-]......0 %d+ 0 0 ') and not too_old(rec) and call('HEXISTS', y, id) == 0 then
    for _, place in ipairs({sub(rec, 4, 19), '~', '\127'}) do
      if call('ZSCORE', f, key .. '\n' .. place .. id) then
        return id, rec, state, place
      end
    end
  end
end

-- Ends a queued message, but leaves its place in f: as 'e', expired, 'c', cancelled, or 's', superseded.
local function discard(id, key, rec, how, because)
  local mark, counted, cause = match(call('HGET', r, id) or UNTRIED, '^.(......)(%d+ %d+ %d+ )%d+ %S* (.*)$')
  local enqueued, not_after = tonumber(sub(rec, 20, 32), 10) or 0, tonumber(sub(rec, 33, 45), 10) or 0
  local k, n, p = tonumber(sub(rec, 46, 48), 10) or 0, tonumber(sub(rec, 49, 51), 10) or 0, tonumber(sub(rec, 52, 54), 10) or 0
  call('ZREM', z, id .. ' ' .. key)
  local what, principal = about(rec, 46)
  local size = size_of(id, rec)
  occupy(key, principal, -size)
  count('bytes', -size)
  settle_slot(id, match(rec, '^1[qc]') and 's' .. what or '')
  for _, name in ipairs({r, m, b}) do
    call('HDEL', name, id)
  end
  remember({id, table.concat({how .. string.format('%011x', now) .. (mark or '------') .. (counted or '0 0 0 ') .. enqueued,
    math.max(0, not_after - enqueued), 0, k, n, p, sub(rec, 55, 54 + k + n + p) .. (because or cause or '')}, ' ')})
  count(GIVEN_UP[how])
  ended[#ended + 1] = id
end

-- Ends a queued message that is not to be run.
local function give_up(id, key, rec, how, because)
  discard(id, key, rec, how, because)
  if key == '' then
    return
  end
  call('ZREM', f, key .. '\n' .. sub(rec, 4, 19) .. id, key .. '\n~' .. id, key .. '\n\127' .. id)
  local head = line(key, '1')[1]
  local member = head and id_at(head, key) .. ' ' .. key
  if not head then -- nobody is left to have the key before others: a claim tells a worker of it if nobody heard
    announce(key)
    if call('ZCARD', e) < LARGE then
      call('ZADD', e, NOW, key)
      keep(e, retention)
    end
  elseif not call('ZSCORE', w, member) and not call('ZSCORE', z, member) then
    look_at(member, now)
  end
end
