-- Takes the key: nobody holds it or waits → a thin record; else ask.lua. On a Cluster the record begins as a
-- HASH: while its slot moves, a node refuses every command on a key that does not exist, so an inflation would
-- fail after its DEL.
--
-- KEYS[1], ARGV[1]        see call.lua
-- ARGV[2] to 7, returns   see ask.lua and late.lua
-- ARGV[8]  '1' on a Cluster
-- #include call.lua
-- #include late.lua
local its = time[1] .. string.sub('00000' .. time[2], -6) -- micros; to format a number takes longer
if ARGV[8] ~= '1' then
  -- If its memory is full Redis refuses this; a script that finds the key held goes on.
  local free = redis.pcall('SET', key, 'pk2 ' .. token .. ' ' .. its .. ' ' .. (ARGV[4] or ''), 'NX', 'PX', ARGV[2])
  if free and free.ok then -- nobody holds it, nobody waits
    return micros
  end
  if (ARGV[5] or '') == '' and (ARGV[6] or '') == '' and (ARGV[7] or '0') == '0' then -- it does not wait
    -- #include refusal.lua
    local refused = refusal(key, token, redis.call('MGET', key)[1])
    if refused then
      return refused
    end
  end
elseif redis.call('EXISTS', key) == 0 then -- the same
  if tonumber(ARGV[7]) > 0 then
    redis.call('HDEL', key, '') -- as in ask.lua
  end
  redis.call('HSET', key, 'fence', its, 'last', token, 'h:' .. token, string.format('%d %s %s', now + ARGV[2], its, ARGV[4]))
  redis.call('PEXPIRE', key, ARGV[2])
  return micros
end

-- #include ask.lua
