-- The ends of dead letters, and of their halts; after ended.lua.

-- Ends the halt of a key if a dead letter made it. Reports whether it did.
local function resume(key, id)
  local halt = redis.call('HGET', h, key)
  if halt and halt:sub(2) == id then
    remove(h, key)
    unrun[key] = 'resumed'
    return true
  end
end

-- Forgets a dead letter. One that had no room is remembered as others that ended, without its cause and its result.
local function forget(id, no_room)
  local rec, ending = redis.call('HGET', m, id) or '', redis.call('HGET', y, id) or ''
  local t = read(id, rec)
  local counts, k, n, p, texts = ending:match('^(%d+ %d+ %d+ %w+ %w+ )%d+ (%d+ )(%d+ )(%d+ )(.*)$', 19)
  weigh_letter(id, t.n, ending, -1)
  if no_room and counts then
    local list = endings[rec:match('^..[=B]') and 3 or 2]
    list[#list + 1], list[#list + 2] = id, ending:sub(1, 18) .. counts .. '0 ' .. k .. n .. p .. texts:sub(1, k + n + p)
  end
  remove(x, id)
  remove(y, id)
  remove(m, id)
  if t.long then
    freed[#freed + 1] = id
  end
  resume(t.key, id)
end

-- The oldest dead letter of the group that has most, of those of the name that has most, and where l has it; or what g has of
-- a group without one. A group that is not among the first of g has so little that any of the name's may be taken for it.
local function heaviest()
  local name, group
  for _, member in ipairs(redis.call('ZREVRANGE', g, '0', '199')) do
    local rest = member:sub(2)
    if member:sub(1, 1) == 'n' then
      name = name or rest
    elseif not group and (not name or rest:match('^(.*)\n') == name) then
      group, name = rest, name or rest:match('^(.*)\n')
    end
    if group and name then
      break
    end
  end
  if not name then
    return
  end
  local from = (group or name) .. '\n' -- of a name of many groups any of them
  local entry = redis.call('ZRANGEBYLEX', l, '[' .. from, '(' .. from:sub(1, -2) .. '\11', 'LIMIT', '0', '1')[1]
  return entry and entry:match('^.*\n...........(.*)$'), entry, group and 'p' .. group or 'n' .. name, name
end

-- Forgets dead letters, so many at most, while they take more than they may and there is more than one. Those that halt a key are no
-- exception: else the poison of one principal would flush the letters of all others. Returns how many, with the name of the last, and
-- whether there may be more to do.
local function forget_most(steps)
  local forgotten, last = 0, ''
  write_sums()
  while steps > 0 and letter_bytes > HISTORY and redis.call('ZCARD', x) > 1 do
    local id, entry, member, name = heaviest()
    if id and redis.call('HEXISTS', y, id) == 1 then
      forget(id, true)
      forgotten, last = forgotten + 1, name
    elseif entry then -- somebody removed it
      remove(l, entry)
    elseif member then
      remove(g, member)
    else
      break -- they are not known, and stay for their time
    end
    write_sums()
    steps = steps - 1
  end
  return forgotten .. ' ' .. last, steps == 0
end
