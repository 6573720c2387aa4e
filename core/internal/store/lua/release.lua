-- Releases the key, or leaves its queue; then serves the queue: thin record → DEL; nobody waits → DEL; the next
-- waiter wants the key alone → grant it; else in general. It also cancels an acquire whose reply was lost.
--
-- KEYS[1], ARGV[1]  see call.lua
-- ARGV[2]  the greatest fence that was used under the caller's grant, or 0 if none was
-- The others can be absent:
-- ARGV[3]  '1' if the record is known to be a HASH, since another token has asked
-- ARGV[4]  the rest of a MinHold: for how many ms the key stays held after the release; or 0
-- ARGV[5]  another token of the same process, or ''
-- ARGV[6]  its mark, to have it wait for the key; '' to have it leave the queue
-- ARGV[7]  its description
-- ARGV[8]  '1' if it cannot be in the queue yet
-- ARGV[9]  if it is to wait: see late.lua. A call that comes late does nothing with it
-- ARGV[10] '1' to end the key's reservation too, if ARGV[2] is not less than its stamp
-- returns  1 when the caller held the key, 0 when it did not; 2 more if a reservation was to end, and stays
--          with a token that waits: {the same, its fence if it was granted, else
--          0, server's time in ms, its place in the queue, length of the queue, ms
--          left of a holder's lease, the latest fence}; late: {the same, 0,
--          server's time in ms, -1, 0, 0, 0}
-- #include call.lua
-- The common cases come first, before the functions that the others need, and take a fraction of the time: when Redis
-- has been idle, everything that a script touches has to be loaded into the processor's caches.
local used, min_hold, other, mark, unreserves = tonumber(ARGV[2]), tonumber(ARGV[4] or 0), ARGV[5] or '', ARGV[6] or '', ARGV[10] == '1'
local plain = min_hold == 0 and used > 0 and used < micros
local text
if plain and mark == '' and ARGV[3] ~= '1' then -- nobody asked for the key meanwhile
  local its = 'pk2 ' .. token .. ' '
  text = redis.call('MGET', key)[1]
  if text and string.sub(text, 1, #its) == its then
    redis.call('DEL', key) -- there is nothing to remember
    return 1
  end
end
local late
if (ARGV[9] or '0') ~= '0' and ARGV[9] - now < 0 then
  other, mark, late = '', '', {1, 0, now, -1, 0, 0, 0}
end
if plain and not text and string.sub(token, 1, 2) == '1:' then -- it holds the key alone, if it does
  local its = redis.pcall('HMGET', key, 'h:' .. token, 'queue', 'waiting', 'watch', 'reserved', 'v')
  local stays = its[5] and not (unreserves and tonumber(string.match(its[5], ' (%d+)$')) <= used)
  local mine, queue = its[1] and tonumber(string.sub(its[1], 1, 13)) > now and not stays and not its[6], its[2] or ''
  if mine and queue == '' and (its[4] or '') == '' and mark == '' then -- nobody waits
    redis.call('DEL', key)
    return late or 1
  end
  local e, id, alive, what, to = string.match(queue, '^(1:([^@+~]*)%.[^@+~]*)@(%d+),(%S*) ()')
  local fresh = mine and not its[5] and e and now + AGED < tonumber(alive) -- there is no w:TOKEN
  if fresh and e ~= other and (other == '' or ARGV[8] == '1') then -- the next also wants it alone
    local fence, claim = time[1] .. string.sub('00000' .. time[2], -6), string.format('%d', now + CLAIM) -- micros
    local waiting = its[3] - 1
    queue = string.sub(queue, to)
    if other ~= '' then
      waiting = waiting + 1
      queue = queue .. other .. mark .. string.format('%d', now + ALIVE) .. ',' .. ARGV[7] .. ' '
    end
    redis.call('HDEL', key, 'h:' .. token) -- before the message: Redis may refuse writes
    -- A token that joins the queue extends the record's expiry to ALIVE, unless another token did so in the same
    -- AGED ms; so the record lasts for ALIVE - AGED more if the next waiter's token does.
    if math.floor((alive - ALIVE) / AGED) < math.floor(now / AGED) then
      redis.call('PEXPIRE', key, CLAIM + ALIVE)
    end
    local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')
    local here, more = true, waiting > 0 and 1 or 0
    -- #include grant.lua
    if sent then
      redis.call('HSET', key, 'fence', fence, 'last', e, 'next', claim, 'queue', queue, 'waiting', waiting,
        'h:' .. e, claim .. ' ' .. fence .. ' ' .. what)
      if mark == '' then
        return late or 1
      end
      return {1, 0, now, waiting, waiting, CLAIM, tonumber(fence)}
    end
    redis.call('HSET', key, 'h:' .. token, its[1]) -- nobody was told
  end
end

-- #include message.lua
-- #include record.lua
-- #include queue.lua
if foreign() then
  return mark == '' and 0 or {0, 0, now, 0, 0, 0, 0}
end
if unreserves and stamp <= used then
  reserved = 0
end
local owned = (mine and 1 or 0) + (unreserves and reserved > 0 and 2 or 0)

if mine and min_hold == 0 and limit(token) == 1 then -- the rest of the block is unused
  fence, last = math.max(used, tonumber(string.match(mine, '^%d+ (%d+)'))), ''
end
if mine and min_hold > 0 then
  local rest = string.match(mine, ' .*$')
  local gone = token .. '0' -- a renewal that is under way must not find it
  redis.call('HDEL', key, 'h:' .. token)
  if last == token then
    last = gone
  end
  -- Written at once: sweep counts what it finds, and a record of one holder has no count.
  redis.call('HSET', key, 'h:' .. gone, string.format('%d%s', now + min_hold, rest))
  needed_until, soonest = now + min_hold, math.min(soonest, now + min_hold)
elseif mine then
  redis.call('HDEL', key, 'h:' .. token)
  held = held - 1
  if held == 0 then
    soonest = NEVER
  end
else
  leave(token)
end

sweep()
local before
local its = 0
local granted = not mine and mark ~= '' and redis.call('HMGET', key, 'h:' .. other)[1]
if granted and ends(granted) > now then -- the reply to an earlier call was lost: it has had the key since then
  its = tonumber(string.match(granted, '^%d+ (%d+)'))
elseif mark ~= '' then
  before = join(other, mark, ARGV[7], mine and ARGV[8] == '1')
elseif other ~= '' then
  leave(other)
end
if serve(other) then
  its = grant(other, CLAIM, ARGV[7])
end
if mine and min_hold > 0 then
  -- The waiters know a later end of the lease, and no release follows. If the first waiter is dead, the
  -- next one notices.
  local sent = 0
  for e, m in string.gmatch(queue, '([^@+~ ]*)([@+~])%S* ') do
    if sent == 3 then
      break
    elseif m ~= '~' and e ~= other then
      send(locker(e), string.format('ends %s %d', named(e), min_hold))
      sent = sent + 1
    end
  end
  alert()
end
if exists or mark ~= '' then
  save()
end
if late then
  late[1] = owned
end
if mark == '' then
  return late or owned
end
return {owned, its, now, its == 0 and before and before + 1 or 0, waiting, held > 0 and math.max(soonest - now, 0) or 0, fence}
