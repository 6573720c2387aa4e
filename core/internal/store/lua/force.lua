-- Takes the key from one holder, tells its locker by a message, and serves the queue.
--
-- KEYS[1]  see call.lua
-- ARGV[1]  ''
-- ARGV[2]  a fence of the holder's grant: an exclusive grant has BLOCK of them, a downgraded
--          one those that were used before
-- returns  the grant's first fence, or 0 when there is no such holder
-- #include call.lua
-- #include record.lua
record = read(key, true)
-- #include message.lua
-- #include queue.lua
if foreign() then
  return 0
end
local wanted = tonumber(ARGV[2])

-- A later grant begins above every fence that was used before, so a fence is in the
-- block of at most one holder, and never in that of a later one.
local victim, its
local all = exists and redis.call('HGETALL', key) or {}
for i = 1, #all, 2 do
  local e, of, to = string.match(all[i], '^h:(.*)$'), string.match(all[i + 1], '^%d+ (%d+)%-?(%d*)')
  of = tonumber(of or '')
  to = e and of and (limit(e) == 1 and of + BLOCK - 1 or tonumber(to) or of)
  if to and of <= wanted and wanted <= to and (ends(all[i + 1]) or 0) > now then
    victim, its = e, of
  end
end
if not victim then
  return 0
end

redis.call('HDEL', key, 'h:' .. victim)
held = held - 1
if held == 0 then
  soonest = NEVER
end
local to = locker(victim)
if to then
  send(to, string.format('lost %.0f', its))
end
sweep()
serve('')
save()
return its
