-- How messages get into a partition, within its bounds: what enqueue.lua and
-- redrive.lua share, after common.lua.
--
-- ARGV[3]  how many open and running messages the partition may have
-- ARGV[4]  how many of them may be of one key; after spaces, how many bytes those of a key and
--          those of a principal may take
-- #include finish.lua
-- #include ended.lua
local max_depth = tonumber(ARGV[3])
local max_line, max_key, max_principal = ARGV[4]:match('^(%d+) (%d+) (%d+)$')
max_line, max_key, max_principal = tonumber(max_line), tonumber(max_key), tonumber(max_principal)

local all = redis.call('HLEN', m) -- dead letters too
local lengths, headed = {}, {} -- of keys: how many messages they have at most; whether one is not delayed
local LEAST = message_size(0, '', 'k', '', '') -- bytes of a message with a key
local steps = 2 * STEPS -- how many messages are looked at, whether they are too old

if all == 0 then -- a count that was lost is right again
  bytes = 0
end

-- What is full for so many messages more, one or none, of so many bytes.
local function full(key, principal, n, size)
  if key ~= '' and not lengths[key] then
    lengths[key] = math.floor(use('k', key) / LEAST) -- at most: count only near the bound
    if lengths[key] + 64 > max_line then
      lengths[key] = redis.call('ZLEXCOUNT', f, '[' .. key .. '\n', '(' .. key .. '\11')
    end
    headed[key] = lengths[key] > 0 and #line(key, '1') > 0
    if lengths[key] == 0 then
      uses['k' .. key] = 0
    end
  end
  if key ~= '' and (lengths[key] + n > max_line or use('k', key) + size > max_key) then
    return 'key full'
  elseif use('p', principal) + size > max_principal then
    return 'principal full'
  end
  local deep = all + n > max_depth and all + n - redis.call('ZCARD', x) > max_depth
  return (deep or bytes + ended_bytes + size > max_bytes) and 'queue full' or nil
end

local function expire(id)
  local rec = steps > 0 and redis.call('HGET', m, id)
  steps = steps - 1
  if rec and too_old(rec) and not is_running(redis.call('HGET', r, id)) then
    discard(id, key_of(rec), rec, 'e')
  end
end

-- Why there is no room for a message of a key; nil if there is. What is full of messages that are too old
-- is not full, nor of what has ended: of that the oldest is forgotten, until it takes half of all, but
-- nothing of the last minute.
local function refusal(key, principal, size)
  local why = full(key, principal, 1, size)
  if not why or steps <= 0 then
    return why
  end
  apply()
  for _, place in ipairs(key ~= '' and line(key, STEPS) or {}) do
    expire(id_at(place, key))
  end
  tidy()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', z, '-inf', NOW, 'LIMIT', '0', STEPS)) do
    expire((split(member)))
  end
  tidy()
  all, lengths, headed = redis.call('HLEN', m), {}, {}
  make_room(read_buckets())
  return full(key, principal, 1, size)
end

-- Stores a message. Its place is its number, '~' or '\127'; with a key it has gone through full() before.
-- If it is due at a time, z has it.
local function admit(id, key, principal, rec, place, due, size)
  add(m, id, rec)
  if key ~= '' then
    add(f, key .. '\n' .. place .. id, '0')
    lengths[key] = lengths[key] + 1
  end
  if due then
    look_at(id .. ' ' .. key, due)
  end
  use('k', key, size)
  use('p', principal, size)
end
