-- Stores a message, unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]   id
-- ARGV[4]   key, or ''
-- ARGV[5]   name
-- ARGV[6]   payload
-- ARGV[7]   delay before it becomes due, in ms
-- ARGV[8]   its greatest age, in ms
-- ARGV[9]   how many open and running messages the queue may have
-- ARGV[10]  how many of them may be of one key
-- returns   {1, not_after ms} when it is stored
--           {-1} key full, {-2} queue full, {-3} the id is taken by junk
local id, key = ARGV[3], ARGV[4]
local delay, max_age, max_depth, max_line = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local member = id .. ' ' .. key

local kind = kind_of(record(id))
if kind ~= 'none' then
  local not_after = kind == 'hash' and whole(redis.call('HGET', record(id), 'not_after'))
  if not_after then
    return {1, not_after}
  end
  return {-3}
end

clear_sets()
clear(line(key), 'list')

local function full()
  if key ~= '' and redis.call('LLEN', line(key)) >= max_line then
    return -1
  elseif redis.call('ZCARD', open) + redis.call('ZCARD', running) >= max_depth then
    return -2
  end
end

-- What is full of messages that are too old is not full.
if full() then
  sweep()
  local why = full()
  if why then
    return {why}
  end
end

local not_after, life = now + max_age, max_age + retention
redis.call('HSET', record(id), 'key', key, 'name', ARGV[5], 'payload', ARGV[6], 'state', 'queued',
  'attempts', 0, 'conflicts', 0, 'losses', 0,
  'enqueued', num(now), 'due', num(now + delay), 'not_after', num(not_after))
redis.call('PEXPIRE', record(id), num(life))
redis.call('ZADD', open, num(not_after), member)
keep(open, life)
if key == '' then
  make_due(member, now + delay)
else
  redis.call('RPUSH', line(key), id)
  keep(line(key), life)
  advance(key)
end
return {1, not_after}
