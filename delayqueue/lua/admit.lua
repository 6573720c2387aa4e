-- How messages get into a partition, within its bounds: what enqueue.lua and
-- redrive.lua share, after common.lua.
--
-- ARGV[3]  how many open and running messages the partition may have
-- ARGV[4]  how many of them may be of one key
local max_depth, max_line = tonumber(ARGV[3]), tonumber(ARGV[4])

clear_sets()
local depth = redis.call('ZCARD', open) + redis.call('ZCARD', running)

local opened, dues = {}, {} -- what is to be put into the sets

-- Puts what was admitted into the sets, before flush().
local function file()
  if #opened > 0 then
    redis.call('ZADD', open, unpack(opened))
  end
  if #dues > 0 then
    redis.call('ZADD', due, unpack(dues))
  end
  opened, dues = {}, {}
end

local function full(key)
  if key ~= '' and redis.call('LLEN', line(key)) >= max_line then
    return 'key full'
  elseif depth >= max_depth then
    return 'queue full'
  end
end

-- Why there is no room for a message of a key; nil if there is.
local function refusal(key)
  if key ~= '' then
    clear(line(key), 'list')
  end
  if full(key) then -- what is full of messages that are too old is not full
    file()
    sweep()
    for _ = 1, STEPS do
      local id = key ~= '' and redis.call('LINDEX', line(key), 0)
      local m = id and load(id, key)
      if not m or m.state ~= 'queued' or m.not_after > now then
        break
      end
      give_up(id .. ' ' .. key, id, key, 'expired')
    end
    depth = redis.call('ZCARD', open) + redis.call('ZCARD', running)
  end
  return full(key)
end

-- Puts a message whose record is written at the end of its key's line.
local function admit(id, key, at, not_after)
  local member, ms = id .. ' ' .. key, not_after - now + retention
  redis.call('PEXPIRE', record(id), ms)
  opened[#opened + 1] = moment(not_after)
  opened[#opened + 1] = member
  outlive(open, ms)
  if key ~= '' then
    outlive(line(key), ms)
  end
  if key == '' or redis.call('RPUSH', line(key), id) == 1 then
    dues[#dues + 1] = moment(at)
    dues[#dues + 1] = member
    outlive(due, ms)
    soonest = math.min(soonest or at, at)
  end
  depth = depth + 1
end
