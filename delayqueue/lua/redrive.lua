-- Puts dead letters back into the queue, each at the end of its key's line, as if
-- it were new: its attempts and conflicts are counted anew. Its losses stay: they
-- tell that the work may have been done before.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5]   the greatest age of each, in ms from now
-- ARGV[6..] of each dead letter: id, when it died as its ending has it, or '' for whenever that was
-- returns   for each 'redriven', 'key full', 'queue full', 'damaged', '' when it died anew;
--           what is no dead letter is redriven, by this call or before
-- #include common.lua
-- #include admit.lua
local age = tonumber(ARGV[5])

local function redrive(id, died)
  local ending, rec = call('HGET', y, id), call('HGET', m, id) or ''
  if not ending then
    return 'redriven'
  elseif died ~= '' and died ~= sub(ending, 2, 12) then
    return ''
  end
  local losses, result, k, n, p, texts = match(ending, '^%d+ %d+ (%d+) %w+ %w+ (%d+) (%d+) (%d+) (%d+) (.*)$', 19)
  local body, key = sub(rec, 3, 3) == 'b', key_of(rec)
  if not losses or not match(sub(rec, 1, 54), '^1[pqc-][b-]%d+$') or body and call('HSTRLEN', b, id) == 0 then
    return 'damaged'
  end
  local _, principal = about(rec, 46)
  local bytes = size_of(id, rec)
  local why = refusal(key, principal, 0)
  if why then
    return why
  end
  local number
  if resume(key, id) then -- it goes before those that it halted
    number, headed[key] = sub(rec, 4, 19), false
    for _, place in ipairs(line(key, '1')) do
      call('ZREM', z, id_at(place, key) .. ' ' .. key)
    end
  end
  admit(id, key, '-', sub(rec, 20, 32) .. string.format('%.0f', now + age) .. sub(rec, 46), body, age, nil, number)
  occupy(key, principal, bytes)
  count('bytes', -ending_size(#ending))
  file()
  call('HSET', r, id, '-------0 0 ' .. losses .. ' 0  ' .. sub(texts, k + n + p + 1, -1 - result))
  live(0, r)
  call('HDEL', y, id)
  call('ZREM', x, id)
  count('redriven')
  return 'redriven'
end

local replies = {}
for i = 6, #ARGV, 2 do
  replies[#replies + 1] = redrive(ARGV[i], ARGV[i + 1])
end
flush()
return replies
