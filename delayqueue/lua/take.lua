-- Gives messages to workers, for claim.lua and settle.lua: want → start; after ended.lua.
local wanted, members, queued_after, tokens, since = {}, {}, {}, {}, {}
local asked = {} -- token -> where in the replies stands what it claims; nil: at the end
local payloads = 0 -- bytes that were given

-- Has a message, its key's head if it has one, given to a worker by start(). It was due since then, in ms.
local function want(id, member, places, token, due)
  local n = #wanted + 1
  wanted[n], members[n], queued_after[n], tokens[n], since[n] = id, member, places and places[2] and 1 or 0, token, due
end

-- Puts a delayed message at the end of its key's FIFO, as also one that was lost from there.
local function join(id, key)
  local number, rec = next_seq(), redis.call('HGET', m, id) or ''
  if too_old(rec) then
    return discard(id, key, rec, 'e')
  end
  redis.call('ZADD', f, 0, key .. '\n' .. number .. id)
  redis.call('ZREM', f, key .. '\n~' .. id, key .. '\n\127' .. id, key .. '\n' .. rec:sub(4, 19) .. id)
  if rec:sub(1, 1) == '1' then
    redis.call('HSET', m, id, rec:sub(1, 3) .. number .. rec:sub(20))
  end
end

-- Has messages that are due given to workers, as many as there are tokens. Delayed ones join before.
local function want_due(list)
  local found = #list > 0 and redis.call('ZRANGEBYSCORE', z, '-inf', NOW, 'WITHSCORES', 'LIMIT', '0', #list) or {}
  for i = 1, #found / 2 do
    local member, due = found[2 * i - 1], found[2 * i]
    local id, key = split(member)
    local places = key ~= '' and fifo(key, '2')
    if places and id_at(places[1] or '', key) ~= id then
      join(id, key)
      places = fifo(key, '2')
    elseif #id == #member then -- junk
      remove(z, member)
      member = id .. ' '
    end
    if not places or id_at(places[1] or '', key) == id then
      want(id, member, places, list[i], due)
    else
      remove(z, member)
    end
  end
end

-- A message in the reply for its worker.
local function delivery(member, rec, tries, queued_after, waited, due) return {member, rec, tries, queued_after, waited and 1 or 0, due} end

-- Gives what is wanted to its workers, but not much more than max_payload bytes of payload: what each is told comes
-- into the replies. What is too old ends.
local function start(lease, max_payload, replies)
  if #wanted == 0 then
    return
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
      local tries, waited = '------1 0 0 0 ' .. token .. ' ', rec:find('^1[pq]')
      if state then
        local mark, attempts, counted, cause = state:match('^.(......)(%d+) (%d+ %d+ %d+) %S* (.*)$')
        tries = mark and mark .. attempts + 1 .. ' ' .. counted .. ' ' .. token .. ' ' .. cause or tries
        rec, waited = mark and rec or '', state:sub(1, 1) == 'w' -- its worker makes a dead letter of junk
      end
      tries = 'r' .. tries
      replies[asked[token] or #replies + 1] = delivery(member, rec, tries, queued_after[i], waited, since[i])
      payloads = payloads + (rec:sub(3, 3) == 'b' and read(id, rec).n or #rec)
      remove(z, member)
      add(w, member, till)
      add(r, id, tries)
    end
  end
end
