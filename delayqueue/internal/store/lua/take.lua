-- Gives messages to workers, for claim.lua and settle.lua: want → start; after ended.lua.
local LOOK = 256 -- how many messages that are due a script looks at, at most, unless it wants more
local wanted, members, places, tokens, since = {}, {}, {}, {}, {}
local asked = {} -- token -> where in the replies stands what it claims; nil: at the end
local payloads = 0 -- bytes that were given

-- Has a message, its key's head if it has one, given to a worker by start(). It was due since then, in ms.
local function want(id, member, queued, token, due)
  local n = #wanted + 1
  wanted[n], members[n], places[n], tokens[n], since[n] = id, member, queued or {}, token, due
end

-- Puts a delayed message at the end of its key's FIFO, as also one that was lost from there; true if it is not too old. What it
-- writes is put off.
local function join(id, key, rec, queued)
  if too_old(rec) then
    return discard(id, key, rec, 'e')
  end
  local number = next_seq()
  local place = key .. '\n' .. number .. id
  add(FIFOS, place, '0')
  for _, was in ipairs({'~', '\127', rec:sub(4, 19)}) do
    remove(FIFOS, key .. '\n' .. was .. id)
  end
  if rec:sub(1, 1) == '1' then
    add(MESSAGES, id, rec:sub(1, 3) .. number .. rec:sub(20))
  end
  queued[#queued + 1] = place
  return true
end

-- Has messages that are due given to workers, as many as there are tokens. Delayed ones join before; those that come behind
-- others of their key are only to be looked at again when it is their turn. While so many join that slots stay free, these are for
-- what became due last and need not join, so they hold up nobody. A head that is neither due later nor runs is somebody else's
-- entry, or has lost w: see tidy(). A worker makes a dead letter of such an entry, if a member can name it.
local function want_due(list)
  local most, at, n = math.max(#list, LOOK), 0, 1
  local fifos, strays = {}, {} -- by key its first places; whether nobody looks at a key's head
  while n <= #list and at < most do -- no more than it takes: usually the first are heads
    local size = math.min(math.max(at, #list), most - at)
    local found = redis.call('ZRANGEBYSCORE', WAITING, '-inf', NOW, 'WITHSCORES', 'LIMIT', at, size)
    local joining, records = {}, {} -- ids of those that are no head
    for i = 1, #found, 2 do
      local id, key = split(found[i])
      if key ~= '' then
        fifos[key] = fifos[key] or fifo(key, '2')
        local first = fifos[key][1]
        local head = first and id_at(first, key) .. ' ' .. key
        if head ~= found[i] then
          joining[#joining + 1] = id
          if head and strays[key] == nil then
            strays[key] = not redis.call('ZSCORE', WAITING, head) and not redis.call('ZSCORE', RUNNING, head)
            unrun[key] = unrun[key] or strays[key] and 'ended' or nil
            if strays[key] and id_at(first, key):find(' ', 1, true) then
              remove(FIFOS, first)
            end
          end
        end
      end
    end
    for i, rec in ipairs(#joining > 0 and redis.call('HMGET', MESSAGES, unpack(joining)) or {}) do
      records[joining[i]] = rec or ''
    end
    for i = 1, #found, 2 do
      local member, id, key = found[i], split(found[i])
      local queued = fifos[key]
      if n > #list then
        break
      elseif #id == #member then -- junk
        remove(WAITING, member)
        member = id .. ' '
      elseif queued and id_at(queued[1] or '', key) ~= id then
        local waits = strays[key] and redis.call('ZSCORE', FIFOS, key .. '\n' .. records[id]:sub(4, 19) .. id) or join(id, key, records[id], queued)
        if waits and #queued > 1 then
          remove(WAITING, member)
        end
      end
      if not queued or id_at(queued[1] or '', key) == id then
        want(id, member, queued, list[n], found[i + 1])
        n = n + 1
      end
    end
    at = #found == 2 * size and at + size or most + 1
  end
  if n <= #list and at == most then
    local due = redis.call('ZCOUNT', WAITING, '-inf', NOW)
    local latest = redis.call('ZRANGE', WAITING, math.max(most, due - #list), due - 1, 'WITHSCORES')
    for i = 1, #latest, 2 do
      local member, id, key = latest[i], split(latest[i])
      local queued = key ~= '' and fifo(key, '2')
      if n <= #list and #id < #member and (not queued or id_at(queued[1] or '', key) == id) then
        want(id, member, queued, list[n], latest[i + 1])
        n = n + 1
      end
    end
  end
  apply()
end

-- A message in the reply for its worker.
local function delivery(member, rec, tries, queued_after, waited, due) return {member, rec, tries, queued_after, waited and 1 or 0, due} end

-- Gives what is wanted to its workers, but not much more than max_payload bytes of payload: what each is told comes
-- into the replies. What is too old ends.
local function start(lease, max_payload, replies)
  if #wanted == 0 then
    return
  end
  local records, states = redis.call('HMGET', MESSAGES, unpack(wanted)), redis.call('HMGET', ATTEMPTS, unpack(wanted))
  local till = text(now + lease)
  for i, id in ipairs(wanted) do
    local member, token, rec, state = members[i], tokens[i], records[i] or '', states[i]
    if is_running(state) then
      remove(WAITING, member)
      if not redis.call('ZSCORE', RUNNING, member) then
        add(RUNNING, member, till)
      end
    elseif too_old(rec) then
      discard(id, member:sub(#id + 2), rec, 'e')
    elseif halt_of(member:sub(#id + 2)) then -- it only expires
      add(WAITING, member, math.min(tonumber(rec:sub(33, 45), 10) or now + 60000, now + 60000))
    elseif payloads >= max_payload then
      add(WAITING, member, since[i])
    else
      local tries, waited = '------1 0 0 0 ' .. token .. ' ', rec:find('^1[pq]')
      if state then
        local mark, attempts, counted, cause = state:match('^[w-](......)(%d+) (%d+ %d+ %d+) %S* (.*)$')
        tries = mark and mark .. attempts + 1 .. ' ' .. counted .. ' ' .. token .. ' ' .. cause or tries
        rec, waited = mark and rec or '', state:sub(1, 1) == 'w' or attempts == '0' and waited -- its worker makes a dead letter of junk
      end
      tries = 'r' .. tries
      replies[asked[token] or #replies + 1] = delivery(member, rec, tries, places[i][2] and 1 or 0, waited, since[i])
      payloads = payloads + (is_long(rec) and read(id, rec).n or #rec)
      remove(WAITING, member)
      add(RUNNING, member, till)
      add(ATTEMPTS, id, tries)
    end
  end
end
