-- The ends of dead letters, and of their halts; after ended.lua.

-- Ends the halt of a key if a dead letter made it. Reports whether it did.
local function resume(key, id)
  local halt = redis.call('HGET', HALTS, key)
  if halt and halt:sub(2) == id then
    remove(HALTS, key)
    unrun[key] = 'resumed'
    return true
  end
end

-- Forgets a dead letter. One that had no room is remembered as others that ended, without its cause and its result.
local function forget(id, no_room)
  local rec, ending = redis.call('HGET', MESSAGES, id) or '', redis.call('HGET', DEAD_LETTERS, id) or ''
  local t = read(id, rec)
  local counts, k, n, p, texts = ending:match('^(%d+ %d+ %d+ %w+ %w+ )%d+ (%d+ )(%d+ )(%d+ )(.*)$', 19)
  weigh_letter(id, t.n, ending, -1)
  if no_room and counts then
    local list = endings[rec:match('^..[=B]') and 3 or 2]
    list[#list + 1], list[#list + 2] = id, ending:sub(1, 18) .. counts .. '0 ' .. k .. n .. p .. texts:sub(1, k + n + p)
  end
  remove(DEAD, id)
  remove(DEAD_LETTERS, id)
  remove(MESSAGES, id)
  if t.long then
    freed[#freed + 1] = id
  end
  resume(t.key, id)
end

-- The first members of LOADS, by themselves; those of names, and those of groups. They are read again when what has most of them has less
-- than any other may have.
local heavy, names, groups, lightest = {}, {}, {}, 0

local function read_heavy()
  local list = redis.call('ZREVRANGE', LOADS, '0', '199', 'WITHSCORES')
  heavy, names, groups, lightest = {}, {}, {}, #list == 400 and tonumber(list[400]) or 1
  for i = 1, #list, 2 do
    local rest, is_name = list[i]:sub(2), list[i]:sub(1, 1) == 'n'
    local kind = is_name and names or groups
    kind[#kind + 1] = {load = tonumber(list[i + 1]), rest = rest, name = is_name and rest or rest:match('^(.*)\n')}
    heavy[list[i]] = kind[#kind]
  end
end

-- The one that has most, of a name if that is given.
local function first_of(kind, name)
  local found, load
  for i = 1, #kind do
    local of = kind[i]
    if (not load or of.load > load) and of.load > 0 and (not name or of.name == name) then
      found, load = of, of.load
    end
  end
  return found
end

-- The oldest dead letter of the group that has most, of those of the name that has most, and where LETTERS has it; or what LOADS has of
-- a group without one. A group that is not among the first of LOADS has so little that any of the name's may be taken for it.
local function heaviest()
  local most = first_of(names)
  if not most or most.load < lightest then
    read_heavy()
    most = first_of(names)
  end
  local group = first_of(groups, most and most.name)
  local name = most and most.name or group and group.name
  group = group and group.rest
  if not name then
    return
  end
  local from = (group or name) .. '\n' -- of a name of many groups any of them
  local entry = redis.call('ZRANGEBYLEX', LETTERS, '[' .. from, '(' .. from:sub(1, -2) .. '\11', 'LIMIT', '0', '1')[1]
  return entry and entry:match('^.*\n...........(.*)$'), entry, group and 'p' .. group or 'n' .. name, name
end

-- Forgets dead letters, so many at most, while they take more than they may and there is more than one. Those that halt a key are no
-- exception: else the poison of one principal would flush the letters of all others. Returns how many, with the name of the last, and
-- whether there may be more to do.
local function forget_most(steps)
  local forgotten, last = 0, ''
  write_sums()
  while steps > 0 and letter_bytes > HISTORY and redis.call('ZCARD', DEAD) > 1 do
    local id, entry, member, name = heaviest()
    if id and redis.call('HEXISTS', DEAD_LETTERS, id) == 1 then
      forget(id, true)
      forgotten, last = forgotten + 1, name
      for of, load in pairs(loads) do
        if heavy[of] then
          heavy[of].load = load
        end
      end
    elseif entry then -- somebody removed it
      remove(LETTERS, entry)
    elseif member then
      remove(LOADS, member)
      names = {}
    else
      break -- they are not known, and stay for their time
    end
    write_sums()
    steps = steps - 1
  end
  return forgotten .. ' ' .. last, steps == 0
end
