-- How messages get into a partition, within its bounds: what enqueue.lua and
-- redrive.lua share, after common.lua.
--
-- ARGV[3]  how many open and running messages the partition may have
-- ARGV[4]  how many of them may be of one key
-- #include expire.lua
local max_depth, max_line = tonumber(ARGV[3]), tonumber(ARGV[4])

local depth = call('HLEN', m) - call('ZCARD', x)
local admitted = {m = {}, b = {}, f = {}, z = {}}
local lengths, headed = {}, {} -- of keys: how many messages they have; whether one is not delayed
local longest = 0 -- age, in ms

-- Puts what was admitted where it belongs.
local function file()
  if #admitted.m == 0 then
    return
  end
  batch('ZADD', z, admitted.z)
  batch('HSET', b, admitted.b)
  batch('ZADD', f, admitted.f)
  batch('HSET', m, admitted.m) -- at last: what is there is stored
  live(longest + retention, z, f, b)
  admitted = {m = {}, b = {}, f = {}, z = {}}
end

local function full(key)
  if key ~= '' and not lengths[key] then
    lengths[key] = call('ZLEXCOUNT', f, '[' .. key .. '\n', '(' .. key .. '\11')
    headed[key] = lengths[key] > 0 and #line(key, '1') > 0
  end
  if key ~= '' and lengths[key] >= max_line then
    return 'key full'
  elseif depth >= max_depth then
    return 'queue full'
  end
end

-- Why there is no room for a message of a key; nil if there is.
local function refusal(key)
  if full(key) then -- what is full of messages that are too old is not full
    file()
    for _, member in ipairs(call('ZRANGEBYSCORE', z, '-inf', NOW, 'LIMIT', '0', STEPS)) do
      local msg = find((split(member)))
      if msg and msg.not_after <= now and not is_running(msg) then
        give_up(msg, 'e')
      end
    end
    if key ~= '' then
      expire_line(key)
    end
    depth, lengths, headed = call('HLEN', m) - call('ZCARD', x), {}, {}
  end
  return full(key)
end

local function append(list, a, v)
  list[#list + 1] = a
  list[#list + 1] = v
end

-- Puts a message at the end of its key's FIFO, or if it is delayed has it join at that time.
local function admit(id, key, parked, enqueued, not_after, about, payload, delayed)
  local number, member, body = next_seq(), id .. ' ' .. key, #payload > INLINE
  append(admitted.m, id, '1' .. parked .. (body and 'b' or '-') .. number .. string.format('%.0f%.0f', enqueued, not_after) .. about ..
    (body and '' or payload))
  if body then
    append(admitted.b, id, payload)
  end
  if key ~= '' then
    append(admitted.f, 0, delayed and key .. '\n~' .. id or key .. '\n' .. number .. id)
    lengths[key] = lengths[key] + 1
  end
  if key == '' or delayed or not headed[key] then
    local at = delayed or now
    append(admitted.z, at, member)
    soonest = math.min(soonest or at, at)
  end
  headed[key] = headed[key] or not delayed
  depth, longest = depth + 1, math.max(longest, not_after - now)
end
