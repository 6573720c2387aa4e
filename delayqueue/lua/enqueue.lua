-- Stores messages, each unless one of its id is stored already: then it answers as
-- the first time did, and changes nothing.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..] of each message: id, key or '', name, payload, delay before it becomes
--           due in ms, its greatest age in ms, principal or '', 1 if it is parked because
--           its key is held, else 0
-- returns   for each message its not_after in ms when it is stored, else
--           -1 key full, -2 partition full, -3 the id is taken by junk
-- #include common.lua
-- #include admit.lua
local codes = {['key full'] = -1, ['queue full'] = -2}

local function store(id, key, name, payload, delay, max_age, principal, parked)
  if redis.call('EXISTS', record(id)) == 1 then
    local first = redis.pcall('HGET', record(id), 'not_after')
    return type(first) == 'string' and whole(first) or -3
  end
  local why = refusal(key)
  if why then
    return codes[why]
  end
  local not_after, at = now + max_age, now + delay
  if delay > 0 and clock[2] % 1000 > 0 then
    at = at + 1 -- a message is never early
  end
  redis.call('HSET', record(id), 'key', key, 'name', name, 'payload', payload, 'state', 'queued',
    'enqueued', moment(now), 'due', moment(at), 'not_after', moment(not_after))
  if principal ~= '' then
    redis.call('HSET', record(id), 'principal', principal)
  end
  if parked == '1' then
    redis.call('HSET', record(id), 'wait', 'key')
  end
  admit(id, key, at, not_after)
  count('enqueued')
  return not_after
end

local replies = {}
for i = 5, #ARGV, 8 do
  replies[#replies + 1] = store(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3],
    tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 7])
end
file()
flush()
return replies
