-- Gives up what the caller has: the key, or its place in the queue. Then serves
-- those who wait. Also cancels an acquire whose reply was lost.
--
-- ARGV[2]  the greatest fence that was used under the caller's grant, or 0 if none was
-- ARGV[3]  ms that the key is to stay taken all the same, or 0
-- ARGV[4]  another entry of the same process, or ''
-- ARGV[5]  its mark, to have it wait for the key; '' to have it leave the queue
-- ARGV[6]  what it is
-- ARGV[7]  '1' if it cannot be in the queue yet
-- returns  1 when the caller held the key, 0 when it did not
--          with an entry that waits: {the same, its fence if it was granted, else
--          0, server's time in ms, its place in the queue, length of the queue}
-- #include record.lua
if redis.call('HLEN', key) == 3 and ARGV[3] == '0' and ARGV[4] == '' then -- one holder, nobody else
  local holder, used = redis.call('HGET', key, 'h:' .. entry), tonumber(ARGV[2])
  if holder and ends(holder) > now and used > 0 and used < micros then
    redis.call('DEL', key) -- there is nothing to remember
    return 1
  end
end

-- #include queue.lua
local owned, used, stay, other = mine and 1 or 0, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

if mine and stay == 0 and limit(entry) == 1 then -- the rest of the block goes back
  fence, last = math.max(used, tonumber(string.match(mine, '^%d+ (%d+)'))), ''
end
if mine and stay > 0 then
  local rest = string.match(mine, ' .*$')
  write('h:' .. entry, string.format('%d%s', now + stay, rest))
  stays, soonest = now + stay, math.min(soonest, now + stay)
elseif mine then
  redis.call('HDEL', key, 'h:' .. entry)
  held = held - 1
  if held == 0 then
    soonest = NEVER
  end
else
  leave(entry)
end

sweep()
local before
if ARGV[5] ~= '' then
  before = join(other, ARGV[5], ARGV[6], mine and ARGV[7] == '1')
elseif other ~= '' then
  leave(other)
end
local its = 0
if serve(other) then
  its = grant(other, CLAIM, ARGV[6])
end
if exists or ARGV[5] ~= '' then
  save()
end
if ARGV[5] == '' then
  return owned
end
return {owned, its, now, its == 0 and before and before + 1 or 0, waiting}
