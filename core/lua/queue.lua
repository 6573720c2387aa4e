-- Reads the record, and says what can be done with it. Scripts come here when
-- somebody else holds the key or waits for it.
local CLAIM = 1000   -- ms a waiter has to take up its grant
local ALIVE = 15000  -- ms after which a waiter that did not ask again is dead
local QUEUE = 1024   -- entries at most
local STEPS = 128    -- waiters served by one call at most

local record = redis.call('HMGET', key, 'fence', 'held', 'last', 'next', 'queue', 'watch', 'h:' .. entry)
local exists = record[1]
local fence = tonumber(exists or 0) or 0
local held, last, soonest = tonumber(record[2] or exists and 1 or 0), record[3] or '', tonumber(record[4] or 0)
local queue, watch, mine = record[5] or '', record[6] or '', record[7]
if mine and ends(mine) <= now then
  mine = false
end

local writes = {} -- fields and values to be written at the end
local stays = 0   -- the record must not expire before, in ms

local function limit(e) return tonumber(string.match(e, '^%d+') or 0) end
local function locker(e) return string.match(e, ':(.*)%.') end

-- send publishes to one locker. It returns how many heard it, or nil if it could
-- not: channels may be forbidden.
local function send(to, words)
  local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')
  local heard = redis.pcall('PUBLISH', prefix .. ':wake:' .. to, words .. ' ' .. name)
  return tonumber(heard)
end

local function write(field, value)
  writes[#writes + 1] = field
  writes[#writes + 1] = value
end

-- sweep forgets the holders whose leases are over. It looks at all of them, but
-- only once the earliest may be over, which renewals put off.
local function sweep()
  if held == 0 or now < soonest then
    return
  end
  held, soonest = 0, NEVER
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local holder = string.match(all[i], '^h:(.*)$')
    if holder then
      local deadline = ends(all[i + 1])
      if deadline <= now then
        redis.call('HDEL', key, all[i])
      else
        held, last, soonest = held + 1, holder, math.min(soonest, deadline)
      end
    end
  end
end

-- fits tells whether one more with this limit can hold the key now.
local function fits(n)
  return held == 0 or limit(last) ~= 1 and (n == 0 or held < n)
end

-- spent is the greatest fence that may have been used.
local function spent() return limit(last) == 1 and fence + BLOCK - 1 or fence end

-- following is the fence of the next grant. The server's clock in microseconds
-- makes it grow even when the data is gone; the stored fence makes it grow even
-- when the clock was set back.
local function following() return math.max(spent() + 1, micros) end

-- grant makes e a holder, and returns its fence.
local function grant(e, lease, what)
  local its = following()
  fence = its
  held, last, soonest = held + 1, e, math.min(soonest, now + lease)
  stays = math.max(stays, now + lease)
  write('h:' .. e, string.format('%.0f %.0f %s', now + lease, its, what))
  return its
end

-- place finds e in the queue: where its entry begins, and how many are before it.
local function place(e)
  local from = string.find(' ' .. queue, ' ' .. e, 1, true)
  if not from then
    return nil
  end
  local _, before = string.gsub(string.sub(queue, 1, from - 1), ' ', '')
  return from, before
end

local function length()
  local _, n = string.gsub(queue, ' ', '')
  return n
end

-- join puts e at the end of the queue, or says that it is still alive. It
-- returns how many are before it; nil if the queue is full.
local function join(e, mark, what)
  local item = e .. mark .. string.format('%.0f', now + ALIVE) .. ',' .. what .. ' '
  local from, before = place(e)
  if from then
    local to = string.find(queue, ' ', from, true)
    queue = string.sub(queue, 1, from - 1) .. item .. string.sub(queue, to + 1)
    return before
  end
  before = length()
  if before >= QUEUE then
    return nil
  end
  queue = queue .. item
  return before
end

local function leave(e)
  local from = place(e)
  if from then
    queue = string.sub(queue, 1, from - 1) .. string.sub(queue, string.find(queue, ' ', from, true) + 1)
  end
end

-- serve grants the key to those at the head of the queue, as long as they fit. It
-- stops, and returns true, when it is the turn of me: the caller grants that one.
local function serve(me)
  for _ = 1, STEPS do
    local e, mark, alive, what, rest = string.match(queue, '^([^@+~]*)([@+~])(%d+),(%S*) (.*)$')
    local dead = e and e ~= me and tonumber(alive) <= now
    if not e or not dead and not fits(limit(e)) then
      return false
    end
    queue = rest
    if e == me then
      return true
    end
    if not dead then
      local heard = 1
      if mark ~= '~' then
        heard = send(locker(e), string.format('grant %s %.0f %.0f %.0f %d', e, following(), now, now + CLAIM, rest == '' and 0 or 1))
        if not heard then -- nobody can be told: the first to ask takes it
          queue = e .. mark .. alive .. ',' .. what .. ' ' .. rest
          return false
        end
      end
      if heard > 0 or mark == '+' then
        grant(e, CLAIM, what)
      end
    end
  end
  return false
end

-- save writes the record, or removes it when nothing is left to remember. It must
-- not vanish before the server's clock has passed its fence, or the next fence could
-- be smaller: that is at once, unless the clock was set back.
local function save()
  if held == 0 and queue == '' then
    for id in string.gmatch(watch, '%S+') do
      send(id, 'free')
    end
    watch = ''
    if spent() < micros then
      redis.call('DEL', key)
      return
    end
    redis.call('HDEL', key, 'last', 'next', 'queue', 'watch')
  else
    write('last', last)
    write('next', soonest)
    if queue ~= (record[5] or '') then
      write('queue', queue)
    end
    if watch ~= (record[6] or '') then
      write('watch', watch)
    end
  end
  write('fence', fence)
  write('held', held)
  stays = math.max(stays, math.floor(spent() / 1000) + 1)
  if queue ~= '' then
    stays = stays + ALIVE -- a dead holder does not take the queue with it
  end
  -- PEXPIRE comes first, since Redis runs it even when its memory is full, and then
  -- lets the script go on. A new record has to fit.
  local left = stays - now
  if exists then
    if held > 0 or queue ~= '' then
      left = math.max(left, redis.call('PTTL', key))
    end
    redis.call('PEXPIRE', key, left)
  end
  redis.call('HSET', key, unpack(writes))
  if not exists then
    redis.call('PEXPIRE', key, left)
  end
end
