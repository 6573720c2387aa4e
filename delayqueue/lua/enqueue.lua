-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', name, payload, delay before it becomes
--           due in ms, its greatest age in ms, principal or ''
-- returns   for each message its not_after in ms when it is stored, else
--           -1 key full, -2 partition full, -3 the id is taken by junk
local codes = {['key full'] = -1, ['queue full'] = -2}

local function store(id, key, name, payload, delay, max_age, principal)
  if redis.call('EXISTS', record(id)) == 1 then
    return whole(redis.pcall('HGET', record(id), 'not_after')) or -3
  end
  local why = refusal(key)
  if why then
    return codes[why]
  end
  local not_after = now + max_age
  redis.call('HSET', record(id), 'key', key, 'name', name, 'payload', payload, 'state', 'queued',
    'attempts', 0, 'conflicts', 0, 'losses', 0,
    'enqueued', num(now), 'due', num(now + delay), 'not_after', num(not_after))
  if principal ~= '' then
    redis.call('HSET', record(id), 'principal', principal)
  end
  admit(id, key, now + delay, not_after)
  count('enqueued')
  return not_after
end

local replies = {}
for i = 5, #ARGV, 7 do
  replies[#replies + 1] = store(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3],
    tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6])
end
flush()
return replies
