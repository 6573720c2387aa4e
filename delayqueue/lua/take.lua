-- How messages are given to workers: what claim.lua and settle.lua share, after common.lua.
-- #include expire.lua
local FRESH = '^1([p-])-%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d(%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d)(%d%d%d)(%d%d%d)'
local starting, starts = {z = {}, w = {}, r = {}}, 0 -- what begin() writes

-- Gives a queued message to a worker. It stays in z until begin(). Answers what the worker is told.
local function start(id, member, rec, tried, behind, waited, body, due)
  starts = starts + 1
  starting.z[starts] = member
  starting.r[2 * starts - 1], starting.r[2 * starts] = id, 'r' .. tried
  return {id, rec, tried, behind and 1 or 0, waited and 1 or 0, body and call('HGET', b, id) or '', due}
end

local function start_again(msg, token, behind, due)
  msg.attempts, msg.token = msg.attempts + 1, token
  return start(msg.id, msg.member, msg.rec, attempts(msg, ''), behind, msg.waited, msg.body, due)
end

local function begin(lease)
  if starts > 0 then
    local held, ends = {}, string.format('%.0f', now + lease)
    for i, member in ipairs(starting.z) do
      held[2 * i - 1], held[2 * i] = ends, member
    end
    batch('ZREM', z, starting.z)
    batch('ZADD', w, held)
    batch('HSET', r, starting.r)
    starting, starts = {z = {}, w = {}, r = {}}, 0
  end
end

-- Has a delayed message join its key's FIFO, as also one that was lost from there. Answers
-- whether it is the head.
local function join(msg)
  call('ZREM', f, msg.key .. '\n~' .. msg.id, msg.key .. '\n' .. msg.seq .. msg.id)
  local head = line(msg.key, 1)[1]
  msg.seq = next_seq()
  msg.rec = string.sub(msg.rec, 1, 3) .. msg.seq .. string.sub(msg.rec, 20)
  call('HSET', m, msg.id, msg.rec)
  call('ZADD', f, 0, msg.key .. '\n' .. msg.seq .. msg.id)
  return not head
end

-- Takes so many messages that are due, but not much more than max_bytes of payload. The
-- i-th taken is of tokens(i). Answers what their worker is told, and how many had expired,
-- and how many were junk.
local function take(want, tokens, lease, max_bytes)
  local taken, bytes, expired, junk, ids, keys, members, due = {}, 0, 0, 0, {}, {}, {}, {}
  local found = call('ZRANGEBYSCORE', z, '-inf', NOW, 'WITHSCORES', 'LIMIT', '0', want)
  if #found == 0 then
    return taken, 0, 0
  end
  for i = 1, #found / 2 do
    members[i], due[i] = found[2 * i - 1], found[2 * i]
    ids[i], keys[i] = split(members[i])
  end
  local records, states = call('HMGET', m, unpack(ids)), call('HMGET', r, unpack(ids))
  for i, id in ipairs(ids) do
    if bytes >= max_bytes or expired + junk >= STEPS then
      break
    end
    local key, rec, told, msg, why = keys[i], records[i], nil, nil, nil
    local places = key ~= '' and line(key, '2')
    local head = key == '' or id_at(places[1] or '', key) == id
    if head and rec and not states[i] then -- the shortest way for what most messages are
      local parked, not_after, kl, nl, pl = string.match(rec, FRESH)
      if parked and tonumber(not_after) > now and tonumber(kl, 10) == #key and #rec >= HEADER - 1 + #key + tonumber(nl, 10) + tonumber(pl, 10) and
        string.sub(rec, HEADER, HEADER - 1 + #key) == key then
        told = start(id, members[i], rec, '1 0 0 0 ' .. tokens(#taken + 1) .. '  ', places and places[2], parked == 'p', false, due[i])
      end
    end
    if not told then
      msg, why = read(id, key, rec, states[i])
    end
    if msg and key ~= '' and msg.not_after > now then
      if not head then
        places = nil
        if join(msg) then
          places = line(key, '2')
        end
      end
    end
    if msg and msg.body and call('HSTRLEN', b, id) == 0 then
      msg, why = nil, 'the record has no payload'
    end
    if msg and msg.not_after > now and not is_running(msg) and (key == '' or places) then
      told = start_again(msg, tokens(#taken + 1), places and places[2], due[i])
    end
    if told then
      bytes = bytes + #rec + #told[6]
      taken[#taken + 1] = told
    elseif not msg then
      call('ZREM', z, members[i])
      quarantine(id, key, why)
      junk = junk + 1
    elseif msg.not_after <= now and not is_running(msg) then
      give_up(msg, 'e')
      expired = expired + 1 + (key ~= '' and expire_line(key) or 0)
    else
      call('ZREM', z, members[i])
    end
  end
  begin(lease)
  return taken, expired, junk
end

-- Gives what runs by a token, after a lost reply, to its worker again, with a new lease. One
-- that became too old meanwhile was not started: its claim runs out.
local function again(id, token, lease)
  local msg = find(id)
  if msg and is_running(msg) and msg.token == token and msg.not_after > now then
    call('ZREM', w, msg.member)
    call('ZADD', w, now + lease, msg.member)
    live(lease + retention, w)
    local places = msg.key ~= '' and line(msg.key, 2) or {}
    return {id, msg.rec, string.sub(attempts(msg, 'r'), 2), places[2] and 1 or 0, 0, msg.body and call('HGET', b, id) or '', ''}
  end
end
