-- Takes all of the keys, or none: read all records → serve each queue → if every key can be had, grant all. A key
-- cannot be had if it is held, reserved or waited for.
--
-- A grant that was published must be written too, so nothing may stop the script between
-- the two. All records are read first: that fails if a key is of another type. serve writes before it
-- publishes: from then on Redis refuses nothing, even if its memory is full.
--
-- KEYS     the records, as in record.lua
-- ARGV[1]  the caller's token, the same on each key
-- ARGV[2]  length of the leases, in ms
-- ARGV[3]  see late.lua
-- ARGV[4]  description of the call, for people; no spaces
-- returns  {1, fence, waited for, …, server's time in ms} with two numbers for each key, the
--          second 1 if others wait for it
--          {0, i, ms left of a holder's lease, length of the queue} if KEYS[i] is
--          the first that cannot be had
-- #include call.lua
-- #include late.lua
-- #include record.lua
local lease, records, saves, grants = tonumber(ARGV[2]), {}, {}, {}
for i, key in ipairs(KEYS) do
  records[i] = read(key)
end
for i, key in ipairs(KEYS) do
  local record = records[i]
  -- #include message.lua
  -- #include queue.lua
  local left, queued -- if it cannot be had
  if foreign() then
    left, queued = expiry(), 0
  elseif not mine and exists then
    sweep()
    serve('')
    saves[#saves + 1] = save
    if queue ~= '' or reserved > 0 or not fits(limit(token)) then
      left, queued = held > 0 and math.max(soonest - now, 0) or 0, waiting
    end
  end
  if left then
    for _, its in ipairs(saves) do
      its()
    end
    return {0, i, left, queued}
  end
  grants[i] = function()
    local its
    if not mine then
      its = grant(token, lease, ARGV[4])
      save()
    else -- the reply to an earlier call was lost
      local what
      its, what = string.match(mine, '^%d+ (%d+) (.*)$')
      if ends(mine) < now + lease then
        write('h:' .. token, string.format('%d %s %s', now + lease, its, what))
        needed_until = now + lease
        save()
      end
    end
    return tonumber(its), queue == '' and 0 or 1
  end
end

local replies = {1}
for i = 1, #KEYS do
  replies[2 * i], replies[2 * i + 1] = grants[i]()
end
replies[#replies + 1] = now
return replies
