-- Puts dead letters back into the queue, each at the end of its key's line, as if
-- it were new: its attempts and conflicts are counted anew. Its losses stay: they
-- tell that the work may have been done before.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5]   token of this call, see receipt.lua
-- ARGV[6]   the greatest age of each, in ms from now
-- ARGV[7..] of each dead letter: id, when it died in ms, or '' for whenever that was
-- returns   for each 'redriven', 'key full', 'queue full', 'damaged: ' and why, its state,
--           or '' if there is none such
-- #include common.lua
-- #include admit.lua
-- #include receipt.lua
local token, max_age = ARGV[5], tonumber(ARGV[6])
local answered = receipt(token)
if answered then
  return answered
end

local redriven = false

local function redrive(id, died)
  local f = redis.pcall('HMGET', record(id), 'key', 'state', 'ended')
  if f.err or not f[2] then
    return ''
  elseif f[2] ~= 'dead' or died ~= '' and f[3] ~= died then
    return f[2]
  end
  local m, why = load(id, f[1])
  if m and redis.call('HEXISTS', record(id), 'payload') == 0 then
    m, why = nil, 'the record has no payload'
  end
  if not m then
    return 'damaged: ' .. why
  end
  why = refusal(m.key)
  if why then
    return why
  end
  local not_after = now + max_age
  redis.call('HSET', record(id), 'state', 'queued', 'attempts', 0, 'conflicts', 0,
    'due', now, 'not_after', not_after)
  redis.call('HDEL', record(id), 'ended', 'owner', 'wait', 'nudged')
  redis.call('ZREM', dead, id)
  admit(id, m.key, now, not_after)
  count('redriven')
  redriven = true
  return 'redriven'
end

local replies = {}
for i = 7, #ARGV, 2 do
  replies[#replies + 1] = redrive(ARGV[i], ARGV[i + 1])
end
file()
flush()
if redriven then
  give_receipt(token, replies)
end
return replies
