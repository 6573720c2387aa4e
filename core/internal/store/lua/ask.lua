-- Takes the key, or joins its queue: sweep → serve the queue → grant if it is the caller's turn, else join. The
-- caller is granted the key if that can be held now, nobody is queued before it, and it is not reserved.
--
-- KEYS[1], ARGV[1]  see call.lua
-- ARGV[2]  length of the lease, in ms
-- ARGV[3]  see late.lua
-- The others can be absent:
-- ARGV[4]  description of the call, for people; no spaces
-- ARGV[5]  its mark, if it is to join the queue; else ''
-- ARGV[6]  id of its locker, if a message is to tell it when nobody holds the key; else ''
-- ARGV[7]  for parked work, which goes first: how long the key is to be reserved for it,
--          in ms, if it is reserved now, or if this call is refused; else 0
-- returns  the fence, if granted, nobody waits, the key is not reserved, and, with a limit
--          above 1, another one with that limit fits
--          {1, fence, 0} if granted and no other fits
--          {1, fence, 1} if granted and others wait
--          {1, fence, 2} if granted and the key is reserved
--          {1, fence, 0 to 2, server's time in ms} if an earlier call was granted
--          {0, ms left of a holder's lease, server's time in ms, place in the
--          queue, length of the queue, the latest fence}; the place is 0 if it is
--          not in it, and -1 if the record is foreign and has no queue
-- #include record.lua
-- #include message.lua
-- #include queue.lua
if foreign() then
  return {0, expiry(), now, -1, 0, 0}
end
local lease, what, mark, listener, parked = tonumber(ARGV[2]), ARGV[4] or '', ARGV[5] or '', ARGV[6] or '', tonumber(ARGV[7] or 0)
if parked > 0 and not exists then
  redis.call('HDEL', key, '') -- Redis lets a script that has written go on when memory is full; parked work frees memory
end

local function others() return reserved > 0 and 2 or queue == '' and 0 or 1 end

if mine then
  -- The caller counts from its last request; the grant may be of an earlier one
  -- that was delivered late.
  local its, what = string.match(mine, '^%d+ (%d+) (.*)$')
  if ends(mine) < now + lease then
    write('h:' .. token, string.format('%d %s %s', now + lease, its, what))
    needed_until = now + lease
    save()
  end
  return {1, tonumber(its), others(), now}
end

sweep()
local served
if parked > 0 then
  served = fits(limit(token))
else
  served = serve(token) or queue == '' and reserved == 0 and fits(limit(token))
end
if served then
  leave(token)
  local its = grant(token, lease, what)
  if parked > 0 and reserved > 0 then
    reserve(parked)
    stamp = its
  end
  save()
  local more = others()
  local n = limit(token)
  return more == 0 and (n <= 1 or held < n) and its or {1, its, more}
end
if parked > 0 then
  reserve(parked)
end

local at = 0
if mark ~= '' then
  local known = place(token)
  local before = join(token, mark, what)
  at = before and before + 1 or 0
  if before and not known and before <= 1 and held > 0 and limit(last) == 1 and locker(last) ~= locker(token) then
    send(locker(last), string.format('wanted %.0f', fence))
  end
end
watch_for(listener)
save()
return {0, held > 0 and math.max(soonest - now, 0) or 0, now, at, waiting, fence}
