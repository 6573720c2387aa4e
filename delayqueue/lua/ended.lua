-- How messages end that nobody runs, after common.lua.

-- Remembers how messages ended, in a bucket. That is another one after a quarter of the
-- retention, if what the oldest one has need not be remembered any more.
local function remember(endings)
  local own = call('HMGET', c, 'bucket', 'since', 'until0', 'until1', 'until2', 'until3', 'until4')
  local at, since = (whole(own[1]) or 0) % 5, whole(own[2])
  local oldest = (at + 1) % 5
  if (not since or since > now or now - since >= retention / 4) and (whole(own[3 + oldest]) or 0) <= now then
    at = oldest
    call('UNLINK', KEYS[12 + at])
    call('HSET', c, 'bucket', at, 'since', NOW)
  end
  batch('HSET', KEYS[12 + at], endings)
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

local function is_running(state) return state and match(state, '^[rR]') and true or false end

-- Ends a queued message that is not to be run: as 'e', expired, or 'c', cancelled.
local function give_up(id, key, rec, how)
  local mark, counted, cause = match(call('HGET', r, id) or UNTRIED, '^.(......)(%d+ %d+ %d+ )%d+ %S* (.*)$')
  local enqueued, not_after = tonumber(sub(rec, 20, 32), 10) or 0, tonumber(sub(rec, 33, 45), 10) or 0
  local k, n, p = tonumber(sub(rec, 46, 48), 10) or 0, tonumber(sub(rec, 49, 51), 10) or 0, tonumber(sub(rec, 52, 54), 10) or 0
  call('ZREM', z, id .. ' ' .. key)
  for _, name in ipairs({r, m, b}) do
    call('HDEL', name, id)
  end
  remember({id, table.concat({how .. (mark or '------') .. string.format('%011x', now) .. (counted or '0 0 0 ') .. enqueued,
    math.max(0, not_after - enqueued), 0, k, n, p, sub(rec, 55, 54 + k + n + p) .. (cause or '')}, ' ')})
  count(how == 'e' and 'expired' or 'cancelled')
  if key == '' then
    return
  end
  call('ZREM', f, key .. '\n' .. sub(rec, 4, 19) .. id, key .. '\n~' .. id)
  local head = line(key, '1')[1]
  local member = head and id_at(head, key) .. ' ' .. key
  if not head then -- nobody is left to have the key before others: a claim tells a worker of it if nobody heard
    announce(key)
    call('ZADD', e, NOW, key)
    keep(e, retention)
  elseif not call('ZSCORE', w, member) and not call('ZSCORE', z, member) then
    look_at(member, now)
  end
end
