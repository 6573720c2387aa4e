-- How messages get into a partition, within its bounds: what enqueue.lua and
-- redrive.lua share, after common.lua.
--
-- ARGV[3]  how many open and running messages the partition may have
-- ARGV[4]  how many of them may be of one key; after spaces, how many bytes those of a key and
--          those of a principal may take
-- #include ended.lua
local max_depth = tonumber(ARGV[3])
local max_line, max_key, max_principal = match(ARGV[4], '^(%d+) (%d+) (%d+)$')
max_line, max_key, max_principal = tonumber(max_line), tonumber(max_key), tonumber(max_principal)
local INLINE = 4096 -- the longest payload in a record

local all = call('HLEN', m)
local depth = all - call('ZCARD', x)
local admitted = {m = {}, b = {}, f = {}, z = {}, u = {}}
local lengths, headed = {}, {} -- of keys: how many messages they have; whether one is not delayed
local longest = 0 -- age, in ms
local steps = 2 * STEPS -- how many messages are looked at, whether they are too old

-- What a HASH takes that has lost its count, by a few of its fields.
local function weigh(name)
  local some, sum = call('HRANDFIELD', name, STEPS), 0
  for _, field in ipairs(some) do
    sum = sum + call('HSTRLEN', name, field)
  end
  return #some > 0 and math.floor(sum / #some * call('HLEN', name)) or 0
end

-- How many bytes the partition takes. What is known of nothing that is open is not trusted.
local own = call('HMGET', c, 'bytes', 'ended0', 'ended1', 'ended2', 'ended3', 'ended4', 'closed', 'seq')
last_seq = own[8]
local open, remembered = whole(own[1]), 0
for i = 2, 6 do
  remembered = remembered + (whole(own[i]) or 0)
end
if not open or all == 0 and open > 0 then
  local is = all > 0 and 300 * all + math.floor(1.25 * (weigh(m) + weigh(b))) or 0
  open = open or 0
  count('bytes', is - open)
end
local function taken() return open + remembered + (counts.bytes or 0) end

-- Forgets what ended longest ago, but not within a minute, until that takes no more than half of all.
local function shed()
  local own, sizes = call('HMGET', c, 'bucket', 'ended0', 'ended1', 'ended2', 'ended3', 'ended4'), {}
  remembered = 0
  for i = 0, 4 do
    sizes[i] = call('EXISTS', KEYS[12 + i]) == 1 and whole(own[2 + i]) or 0 -- it may have expired
    remembered = remembered + sizes[i]
  end
  for step = 1, 4 do
    local i = ((whole(own[1]) or 0) + step) % 5
    if remembered > max_bytes / 2 and sizes[i] > 0 and is_aged(i) then
      call('UNLINK', KEYS[12 + i])
      call('HDEL', c, 'until' .. i, 'ended' .. i)
      remembered = remembered - sizes[i]
    end
  end
end

-- Puts what was admitted where it belongs.
local function file()
  if #admitted.m > 0 then
    batch('ZADD', z, admitted.z)
    batch('HSET', b, admitted.b)
    batch('ZADD', f, admitted.f)
    batch('HSET', m, admitted.m) -- at last: what is there is stored
    batch('HSET', u, admitted.u)
    live(longest + retention, z, f, b, u)
    admitted = {m = {}, b = {}, f = {}, z = {}, u = {}}
  end
end

-- What is full for a message of so many bytes.
local function full(key, principal, bytes)
  if key ~= '' and not lengths[key] then
    lengths[key] = call('ZLEXCOUNT', f, '[' .. key .. '\n', '(' .. key .. '\11')
    headed[key] = lengths[key] > 0 and #line(key, '1') > 0
    if lengths[key] == 0 and use('k' .. key) > 0 then -- damaged: counted anew
      use('k' .. key, -use('k' .. key))
    end
  end
  if all == 0 then
    uses['p' .. principal] = uses['p' .. principal] or 0
  end
  if key ~= '' and (lengths[key] >= max_line or use('k' .. key) + bytes > max_key) then
    return 'key full'
  elseif principal ~= '' and use('p' .. principal) + bytes > max_principal then
    return 'principal full'
  end
  return (depth >= max_depth or taken() + bytes > max_bytes) and 'queue full' or nil
end

local function expire(id)
  local rec = steps > 0 and call('HGET', m, id)
  steps = steps - 1
  if rec and too_old(rec) and not is_running(call('HGET', r, id)) then
    give_up(id, key_of(rec), rec, 'e')
  end
end

-- Why there is no room for a message of a key; nil if there is. What is full of messages that
-- are too old is not full.
local function refusal(key, principal, bytes)
  if full(key, principal, bytes) and steps > 0 then
    file()
    for _, place in ipairs(key ~= '' and line(key, STEPS) or {}) do
      expire(id_at(place, key))
    end
    for _, member in ipairs(call('ZRANGEBYSCORE', z, '-inf', NOW, 'LIMIT', '0', STEPS)) do
      expire((split(member)))
    end
    depth, lengths, headed = call('HLEN', m) - call('ZCARD', x), {}, {}
    shed()
  end
  return full(key, principal, bytes)
end

-- Puts a message at the end of its key's FIFO, or if it is delayed has it join at that time. The
-- text of its record is what it has from the time it was enqueued on, without a long payload.
local function admit(id, key, parked, text, body, age, delayed, number, mark)
  number = number or next_seq()
  append(admitted.m, id, '1' .. parked .. (body and 'b' or '-') .. number .. text)
  if key ~= '' then
    append(admitted.f, 0, delayed and key .. '\n' .. (mark or '~') .. id or key .. '\n' .. number .. id)
    lengths[key] = lengths[key] + 1
  end
  if key == '' or delayed or not headed[key] then
    local at = delayed or now
    append(admitted.z, at, id .. ' ' .. key)
    soonest = math.min(soonest or at, at)
  end
  headed[key] = headed[key] or not delayed
  depth, longest = depth + 1, math.max(longest, age)
end
