-- Reads the record, and has the operations on a key's holders and its queue: sweep, fits, grant, reserve, join, leave,
-- serve, save. Scripts include it when the key may be held or waited for. In it e is an owner token.
local STEPS = 128 -- waiters served by one call at most

record = record or read(key)
local exists = record[1]
local fence = tonumber(exists or 0) or 0
local held, last, soonest = tonumber(record[2] or exists and 1 or 0), record[3] or '', tonumber(record[4] or 0)
local queue, watch, mine, waiting = record[5] or '', record[6] or '', record[7], tonumber(record[8] or 0)
if mine and ends(mine) <= now then
  mine = false
end
local reserved, stamp = string.match(record[9] or '', '^(%d+) (%d+)$')
reserved, stamp = tonumber(reserved or 0), tonumber(stamp or 0)
if reserved <= now then
  reserved, stamp = 0, 0
end
local holders = held -- before this script

-- foreign reports that another version, or something else, wrote the record. Such a key counts as
-- held by an unknown holder, until its expiry.
local function foreign() return record[10] or not exists and redis.call('EXISTS', key) == 1 end
local function expiry() return math.max(redis.call('PTTL', key), 0) end

local writes = {} -- fields and values that save writes
local gone = {}   -- fields that save removes
local needed_until = 0   -- the record must not expire before, in ms
local expires = record[11] -- what its expiry was set to, in ms

local function limit(e) return tonumber(string.match(e, '^%d+') or 0) end
local function locker(e) return string.match(e, ':(.*)%.') end

local function write(field, value)
  writes[#writes + 1] = field
  writes[#writes + 1] = value
end

-- sweep removes the holders whose leases are over. It reads all of them, but
-- only once the earliest lease may be over, which renewals postpone.
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

-- fits reports whether one more holder with this limit can hold the key now.
local function fits(n)
  return held == 0 or limit(last) ~= 1 and (n == 0 or held < n)
end

-- last_fence is the greatest fence that may have been used.
local function last_fence() return limit(last) == 1 and fence + BLOCK - 1 or fence end

-- next_fence is the fence of the next grant. The server's clock in microseconds
-- makes it grow even if the data is lost; the stored fence makes it grow even
-- if the clock was set back.
local function next_fence() return math.max(last_fence() + 1, micros) end

-- grant makes e a holder, and returns its fence.
local function grant(e, lease, what)
  local its = next_fence()
  fence = its
  held, last, soonest = held + 1, e, math.min(soonest, now + lease)
  needed_until = math.max(needed_until, now + lease)
  write('h:' .. e, string.format('%d %.0f %s', now + lease, its, what))
  return its
end

-- reserve reserves the key for parked work, for so many ms at least. A process that holds
-- it alone gets a message, or it could hand the key over to a call of its own.
local function reserve(ms)
  if reserved == 0 then
    stamp = next_fence()
    if held > 0 and limit(last) == 1 then
      send(locker(last), 'reserved')
    end
  end
  reserved = math.max(reserved, now + ms)
end

-- place finds e in the queue: where it begins, and about how many tokens are before
-- it. To count them exactly would take longer.
local function place(e)
  local from = string.find(queue, e, 1, true)
  if not from then
    return nil
  end
  return from, math.floor((from - 1) * waiting / #queue + 0.5)
end

-- alive_until is until when e is alive, by the queue and by w:TOKEN.
local function alive_until(e, alive)
  alive = tonumber(alive)
  if alive < now + AGED then
    alive = math.max(alive, tonumber(redis.call('HGET', key, 'w:' .. e) or 0))
  end
  return alive
end

-- forget removes the w:TOKEN of e, if it can have one; alive is what the queue says.
local function forget(e, alive)
  if tonumber(alive) < now + AGED then -- else nothing was
    gone[#gone + 1] = 'w:' .. e
  end
end

-- join puts e at the end of the queue, or keeps it alive if it is there; new: it cannot be there
-- yet. It returns how many tokens are before it; nil if the queue is full.
local function join(e, mark, what, new)
  local item = e .. mark .. string.format('%d', now + ALIVE) .. ',' .. what .. ' '
  local from, before
  if not new then
    from, before = place(e)
  end
  if from then
    local its, alive, to = string.match(queue, '^([@+~])(%d+),%S* ()', from + #e)
    if its ~= mark then
      forget(e, alive)
      queue = string.sub(queue, 1, from - 1) .. item .. string.sub(queue, to)
    elseif alive_until(e, alive) < now + AGED then
      write('w:' .. e, string.format('%d', now + ALIVE))
    end
    return before
  end
  if waiting >= QUEUE then
    return nil
  end
  queue = queue .. item
  waiting = waiting + 1
  return waiting - 1
end

local function leave(e)
  local from = place(e)
  if from then
    local alive, to = string.match(queue, '^[@+~](%d+),%S* ()', from + #e)
    queue = string.sub(queue, 1, from - 1) .. string.sub(queue, to)
    waiting = waiting - 1
    forget(e, alive)
  end
end

-- serve grants the key to the tokens at the head of the queue, as long as they fit: skip the dead → publish → grant. It
-- grants nothing while the key is reserved. It stops, and returns true, when the next token is
-- me: the caller grants that one.
local function serve(me)
  if reserved > 0 then
    return false
  end
  local from, served = 1, false -- where the rest of the queue begins
  local written = not exists
  for _ = 1, STEPS do
    local to = string.find(queue, ' ', from, true)
    if not to then
      break
    end
    local e, mark, alive, what = string.match(string.sub(queue, from, to - 1), '^([^@+~]*)([@+~])(%d+),(.*)$')
    local dead = e ~= me and alive_until(e, alive) <= now
    if not dead and not fits(limit(e)) then
      break
    end
    if e == me then
      from, waiting, served = to + 1, waiting - 1, true
      forget(e, alive)
      break
    end
    if not dead then
      local granted = true
      if mark ~= '~' then
        if not written then -- before the first message: Redis may refuse writes
          expires = math.max(redis.call('PTTL', key), CLAIM + ALIVE)
          redis.call('PEXPIRE', key, expires)
          written = true
        end
        local room = held + 1 < limit(e) -- for one more with this limit
        local fence, claim, more = string.format('%.0f', next_fence()), string.format('%d', now + CLAIM), waiting > 1 and 1 or room and 2 or 0
        local id, here = locker(e), mark == '@'
        -- #include grant.lua
        granted = sent
        if granted == nil then -- it cannot be published: the first to ask takes the key
          break
        end
      end
      if granted then
        grant(e, CLAIM, what)
      end
    end
    forget(e, alive)
    from, waiting = to + 1, waiting - 1
  end
  if from > 1 then
    queue = string.sub(queue, from)
  end
  return served
end

-- watch_for has a locker told when nobody holds the key, unless its id is ''.
local function watch_for(id)
  if id ~= '' and not string.find(watch, id, 1, true) then
    watch = watch .. id .. ' '
  end
end

-- alert tells the lockers that watch the key that it may be free.
local function alert()
  for id in string.gmatch(watch, '%S+') do
    send(id, 'free')
  end
  watch = ''
end

-- save writes the record, or removes it if nothing is left to remember. The record must
-- not vanish before the server's clock has passed its fence, or the next fence could
-- be smaller. The clock has passed it already, unless it was set back.
local function save()
  local free = held == 0 and queue == '' and reserved == 0
  if free or held == 0 and holders > 0 and reserved > 0 then -- free, and reserved: no waiter gets it, but parked work may
    alert()
  end
  if free then
    if last_fence() < micros then
      redis.call('DEL', key)
      return
    end
    fence, last = last_fence(), '' -- last says whether the fence has a block: without it, store the end of the block
    redis.call('HDEL', key, 'last', 'next', 'queue', 'waiting', 'watch', 'reserved')
  else
    write('last', last)
    write('next', soonest)
    if queue ~= (record[5] or '') then
      write('queue', queue)
      write('waiting', waiting)
    end
    if watch ~= (record[6] or '') then
      write('watch', watch)
    end
    if reserved > 0 then
      write('reserved', string.format('%d %.0f', reserved, stamp))
      needed_until = math.max(needed_until, reserved)
    elseif record[9] then
      redis.call('HDEL', key, 'reserved')
    end
  end
  write('fence', fence)
  write('held', held)
  needed_until = math.max(needed_until, math.floor(last_fence() / 1000) + 1)
  if queue ~= '' then
    needed_until = math.max(needed_until, now) + ALIVE -- a dead holder does not take the queue with it
  end
  -- PEXPIRE comes first, since Redis runs it even when its memory is full, and then
  -- lets the script go on. A new record has to fit.
  local needed = math.max(needed_until - now, LEAST)
  if exists then
    if held > 0 or queue ~= '' then
      needed = math.max(needed, expires or redis.call('PTTL', key))
    end
    if needed ~= expires then
      redis.call('PEXPIRE', key, needed)
    end
  end
  redis.call('HSET', key, unpack(writes))
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  if not exists then
    redis.call('PEXPIRE', key, needed)
  end
end
