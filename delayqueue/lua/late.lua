-- The rarer steps of giving messages to workers: delayed ones join, those that are too old end; after take.lua and ended.lua.

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

-- Has what was delayed join, and given to workers where it is its key's head now; and ends what is too old.
local function start_late(lease, max_payload, replies)
  for _, item in ipairs(late) do
    local member, token, due = unpack(item)
    local id, key = split(member)
    local places
    if #id == #member then -- junk
      redis.call('ZREM', z, member)
      member = id .. ' '
    elseif key ~= '' then
      join(id, key)
      places = fifo(key, '2')
    end
    if not places or id_at(places[1] or '', key) == id then
      want(id, member, places, token, due)
    else
      remove(z, member)
    end
  end
  start(lease, max_payload, replies)
  for _, item in ipairs(old) do
    local id, key, rec = unpack(item)
    discard(id, key, rec, 'e')
  end
  tidy()
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
    return delivery(member, rec, 'r' .. tries, key ~= '' and fifo(key, '2')[2] and 1 or 0, false, '')
  end
end
