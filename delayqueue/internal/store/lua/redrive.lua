-- Puts dead letters back into the queue, each at the end of its key's FIFO, or at its old place if it
-- halts the key, as if it were new: its attempts and conflicts start at 0 again. Its losses stay: they
-- show that the work may have been done before.
--
-- KEYS, ARGV[1..3]  see common.lua and admit.lua
-- ARGV[4]   the greatest age of each, in ms from now
-- ARGV[5..] for each dead letter: id, and when it died as its ending has it, or '' for any time
-- returns   for each 'redriven', 'key full', 'principal full', 'queue full', 'damaged', '' when it died anew;
--           an id that is not a dead letter's counts as redriven
-- #include common.lua
-- #include admit.lua
-- #include room.lua
-- #include letters.lua
local age = tonumber(ARGV[4])

local function redrive(id, died)
  local ending, rec = redis.call('HGET', DEAD_LETTERS, id), redis.call('HGET', MESSAGES, id) or ''
  if not ending then
    return 'redriven'
  elseif died ~= '' and died ~= ending:sub(2, 12) then
    return ''
  end
  local losses, result, k, n, p, texts = ending:match('^%d+ %d+ (%d+) %w+ %w+ (%d+) (%d+) (%d+) (%d+) (.*)$', 19)
  local long = is_long(rec)
  if not losses or not rec:sub(1, 54):match('^1[pqc-][bB=-]%d+$') or long and redis.call('EXISTS', bodies[id]) == 0 then
    return 'damaged'
  end
  local t = read(id, rec)
  local size = message_size(t.n, id, t.key, t.principal, '')
  local why = refusal(t.key, t.principal, size)
  if why then
    return why
  end
  weigh(size)
  weigh_letter(id, t.n, ending, -1)
  local number, due = next_seq(), (t.key == '' or not headed[t.key]) and now
  if t.key ~= '' and resume(t.key, id) then -- it goes before those that it halted
    number, due = t.number, now
    for _, place in ipairs(fifo(t.key, '1')) do
      remove(WAITING, id_at(place, t.key) .. ' ' .. t.key)
    end
  end
  local header = '1-' .. rec:sub(3, 3) .. number .. rec:sub(20, 32) .. text(now + age)
  admit(id, t.key, t.principal, header .. rec:sub(46), number, due, size)
  headed[t.key] = true
  note_tries(id, t.key, t.principal, '-', '------0 0 ' .. losses .. ' 0  ' .. texts:sub(k + n + p + 1, -1 - result))
  if long then
    keep(bodies[id], age + SLACK, 0)
  end
  remove(DEAD_LETTERS, id)
  remove(DEAD, id)
  count('redriven')
  tidy()
  return 'redriven'
end

span = age + retention
local replies = {}
for i = 5, #ARGV, 2 do
  replies[#replies + 1] = redrive(ARGV[i], ARGV[i + 1])
end
return conclude(replies)
