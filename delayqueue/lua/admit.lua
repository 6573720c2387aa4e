-- How messages get into a partition, within its bounds: what enqueue.lua and
-- redrive.lua share, after common.lua.
--
-- ARGV[3]  how many open and running messages the partition may have
-- ARGV[4]  how many of them may be of one key
-- #include ended.lua
local max_depth, max_line = tonumber(ARGV[3]), tonumber(ARGV[4])
local INLINE = 4096 -- the longest payload in a record

local depth = call('HLEN', m) - call('ZCARD', x)
local admitted = {m = {}, b = {}, f = {}, z = {}}
local lengths, headed = {}, {} -- of keys: how many messages they have; whether one is not delayed
local longest = 0 -- age, in ms
local steps = 2 * STEPS -- how many messages are looked at, whether they are too old

-- Puts what was admitted where it belongs.
local function file()
  if #admitted.m > 0 then
    batch('ZADD', z, admitted.z)
    batch('HSET', b, admitted.b)
    batch('ZADD', f, admitted.f)
    batch('HSET', m, admitted.m) -- at last: what is there is stored
    live(longest + retention, z, f, b)
    admitted = {m = {}, b = {}, f = {}, z = {}}
  end
end

local function full(key)
  if key ~= '' and not lengths[key] then
    lengths[key] = call('ZLEXCOUNT', f, '[' .. key .. '\n', '(' .. key .. '\11')
    headed[key] = lengths[key] > 0 and #line(key, '1') > 0
  end
  return key ~= '' and lengths[key] >= max_line and 'key full' or depth >= max_depth and 'queue full' or nil
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
local function refusal(key)
  if full(key) and steps > 0 then
    file()
    for _, place in ipairs(key ~= '' and line(key, STEPS) or {}) do
      expire(id_at(place, key))
    end
    for _, member in ipairs(call('ZRANGEBYSCORE', z, '-inf', NOW, 'LIMIT', '0', STEPS)) do
      expire((split(member)))
    end
    depth, lengths, headed = call('HLEN', m) - call('ZCARD', x), {}, {}
  end
  return full(key)
end

local function append(list, a, v)
  list[#list + 1] = a
  list[#list + 1] = v
end

-- Puts a message at the end of its key's FIFO, or if it is delayed has it join at that time. The
-- text of its record is what it has from the time it was enqueued on, without a long payload.
local function admit(id, key, parked, text, body, age, delayed)
  local number = next_seq()
  append(admitted.m, id, '1' .. parked .. (body and 'b' or '-') .. number .. text)
  if key ~= '' then
    append(admitted.f, 0, delayed and key .. '\n~' .. id or key .. '\n' .. number .. id)
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
