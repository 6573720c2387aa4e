-- How messages are given to workers: what claim.lua and settle.lua share, after common.lua.
-- #include ended.lua
local wanted, members, behind, tokens, since = {}, {}, {}, {}, {}

-- Has a message, its key's head if it has one, given to a worker by start(). It was due since then, in ms.
local function want(id, member, places, token, due)
  local n = #wanted + 1
  wanted[n], members[n], behind[n], tokens[n], since[n] = id, member, places and places[2] and 1 or 0, token, due
end

-- Puts a delayed message at the end of its key's FIFO, as also one that was lost from there.
local function join(id, key)
  local number, rec = next_seq(), redis.call('HGET', m, id) or ''
  if too_old(rec) then
    return discard(id, key, rec, 'e')
  end
  redis.call('ZREM', f, key .. '\n~' .. id, key .. '\n\127' .. id, key .. '\n' .. rec:sub(4, 19) .. id)
  redis.call('ZADD', f, 0, key .. '\n' .. number .. id)
  touched[f] = true
  if rec:sub(1, 1) == '1' then
    redis.call('HSET', m, id, rec:sub(1, 3) .. number .. rec:sub(20))
  end
end

-- Has messages that are due given to workers, as many as there are tokens.
local function want_due(list)
  local found = #list > 0 and redis.call('ZRANGEBYSCORE', z, '-inf', NOW, 'WITHSCORES', 'LIMIT', '0', #list) or {}
  for i = 1, #found / 2 do
    local member, due = found[2 * i - 1], found[2 * i]
    local id, key = split(member)
    if #id == #member then -- junk
      redis.call('ZREM', z, member)
      member = id .. ' '
    end
    local places = key ~= '' and line(key, '2')
    if places and id_at(places[1] or '', key) ~= id then
      join(id, key)
      places = line(key, '2')
    end
    if not places or id_at(places[1] or '', key) == id then
      want(id, member, places, list[i], due)
    else
      remove(z, member)
    end
  end
end

-- What r is to have of a message, but for its flag, when it is started anew; nil for junk.
local function attempt(state, token)
  local mark, attempts, counted, cause = state:match('^.(......)(%d+) (%d+ %d+ %d+) %S* (.*)$')
  return mark and mark .. attempts + 1 .. ' ' .. counted .. ' ' .. token .. ' ' .. cause
end

-- What a worker is told of a message.
local function told(member, rec, tries, behind, waited, due) return {member, rec, tries, behind, waited and 1 or 0, due} end

-- Gives what is wanted to its workers, but not much more than max_payload bytes of payload. Answers what
-- each is told, nil if it has none.
local function start(lease, max_payload)
  local replies, payloads = {}, 0
  if #wanted == 0 then
    return replies
  end
  local records, states = redis.call('HMGET', m, unpack(wanted)), redis.call('HMGET', r, unpack(wanted))
  local halted, till = redis.call('HLEN', h) > 0, text(now + lease)
  for i, id in ipairs(wanted) do
    local member, token, rec, state = members[i], tokens[i], records[i] or '', states[i]
    if is_running(state) then
      remove(z, member)
    elseif too_old(rec) then
      discard(id, member:sub(#id + 2), rec, 'e')
    elseif halted and redis.call('HEXISTS', h, member:sub(#id + 2)) == 1 then -- it only expires
      add(z, member, math.min(tonumber(rec:sub(33, 45), 10) or now + 60000, now + 60000))
    elseif payloads >= max_payload then
      add(z, member, since[i])
    else
      local tries, waited = '------1 0 0 0 ' .. token .. ' ', rec:match('^1[pq]') and true or false
      if state then
        local more = attempt(state, token)
        tries, rec, waited = more or tries, more and rec or '', state:sub(1, 1) == 'w'
      end
      replies[i] = told(member, rec, tries, behind[i], waited, since[i])
      payloads = payloads + (rec:sub(3, 3) == 'b' and read(id, rec).n or #rec)
      remove(z, member)
      add(w, member, till)
      add(r, id, 'r' .. tries)
    end
  end
  return replies
end

-- Tells a worker again what runs by its token, after a lost reply, with a new lease. One
-- that became too old meanwhile was not started: its claim runs out.
local function again(id, token, lease)
  local rec = redis.call('HGET', m, id) or ''
  local tries, owner = (redis.call('HGET', r, id) or ''):match('^[rR](......%d+ %d+ %d+ %d+ (%S*) .*)$')
  local key = key_of(rec)
  local member = id .. ' ' .. key
  if rec ~= '' and owner == token and not too_old(rec) and redis.call('ZSCORE', w, member) then
    add(w, member, text(now + lease))
    return told(member, rec, tries, key ~= '' and line(key, '2')[2] and 1 or 0, false, '')
  end
end
