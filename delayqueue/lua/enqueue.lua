-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   how many open and running messages the partition may have
-- ARGV[4]   how many of them may be of one key
-- ARGV[5..] of each message: id, key or '', name, payload, delay before it becomes
--           due in ms, its greatest age in ms, principal or '', 1 if it is parked because
--           its key is held, else 0
-- returns   for each message its not_after in ms when it is stored, else
--           -1 key full, -2 partition full, -3 the id is taken by junk
local max_depth, max_line = tonumber(ARGV[3]), tonumber(ARGV[4])

clear_sets()
local depth = redis.call('ZCARD', open) + redis.call('ZCARD', running)

local function full(key)
  if key ~= '' and redis.call('LLEN', line(key)) >= max_line then
    return -1
  elseif depth >= max_depth then
    return -2
  end
end

local function store(id, key, name, payload, delay, max_age, principal, parked)
  if redis.call('EXISTS', record(id)) == 1 then
    local first = redis.pcall('HGET', record(id), 'not_after')
    return type(first) == 'string' and whole(first) or -3
  end
  if key ~= '' then
    clear(line(key), 'list')
  end
  if full(key) then -- what is full of messages that are too old is not full
    sweep()
    depth = redis.call('ZCARD', open) + redis.call('ZCARD', running)
    local why = full(key)
    if why then
      return why
    end
  end

  local not_after, member, at = now + max_age, id .. ' ' .. key, now + delay
  if delay > 0 and clock[2] % 1000 > 0 then
    at = at + 1 -- a message is never early
  end
  redis.call('HSET', record(id), 'key', key, 'name', name, 'payload', payload, 'state', 'queued',
    'attempts', 0, 'conflicts', 0, 'losses', 0,
    'enqueued', num(now), 'due', num(at), 'not_after', num(not_after))
  if principal ~= '' then
    redis.call('HSET', record(id), 'principal', principal)
  end
  if parked == '1' then
    redis.call('HSET', record(id), 'wait', 'key')
  end
  redis.call('PEXPIRE', record(id), num(max_age + retention))
  redis.call('ZADD', open, num(not_after), member)
  outlive(open, max_age + retention)
  if key ~= '' then
    outlive(line(key), max_age + retention)
  end
  if key == '' or redis.call('RPUSH', line(key), id) == 1 then
    make_due(member, at, max_age + retention)
  end
  depth = depth + 1
  count('enqueued')
  return not_after
end

local replies = {}
for i = 5, #ARGV, 8 do
  replies[#replies + 1] = store(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3],
    tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 7])
end
flush()
return replies
