-- Puts dead letters back into the queue, each at the end of its key's line, as if
-- it were new: its attempts and conflicts are counted anew. Its losses stay: they
-- tell that the work may have been done before.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5]   token of this call, see receipt.lua
-- ARGV[6]   the greatest age of each, in ms from now
-- ARGV[7..] of each dead letter: id, when it died as its ending has it, or '' for whenever that was
-- returns   for each 'redriven', 'key full', 'queue full', 'damaged: ' and why, its state,
--           or '' if there is none such
-- #include common.lua
-- #include admit.lua
-- #include state.lua
-- #include receipt.lua
local answered = receipt(ARGV[5])
if answered then
  return answered
end

local function redrive(id, died)
  local state, ending = state_of(id)
  if state ~= 'dead' or died ~= '' and died ~= string.sub(ending, 2, 12) then
    return state
  end
  local losses, kl, nl, pl, at = string.match(ending, '^' .. string.rep('.', 18) .. '%d+ %d+ (%d+) %w+ %w+ %d+ (%d+) (%d+) (%d+) ()')
  local msg, why = find(id)
  if not losses then
    return 'damaged: the record of its death cannot be read'
  elseif not msg then
    return 'damaged: ' .. why
  elseif msg.body and call('HSTRLEN', b, id) == 0 then
    return 'damaged: the record has no payload'
  end
  why = refusal(msg.key)
  if why then
    return why
  end
  local about = string.sub(msg.rec, HEADER - 9, HEADER - 1 + msg.lengths)
  local payload = msg.body and call('HGET', b, id) or string.sub(msg.rec, HEADER + msg.lengths)
  admit(id, msg.key, '-', tonumber(msg.enqueued), now + tonumber(ARGV[6]), about, payload)
  file()
  call('HSET', r, id, '-0 0 ' .. losses .. ' 0   ' .. string.sub(ending, at + kl + nl + pl))
  live(0, r)
  call('HDEL', y, id)
  call('ZREM', x, id)
  count('redriven')
  return 'redriven'
end

local replies = {}
for i = 7, #ARGV, 2 do
  replies[#replies + 1] = redrive(ARGV[i], ARGV[i + 1])
end
if counts.redriven then
  give_receipt(ARGV[5], replies)
end
flush()
return replies
