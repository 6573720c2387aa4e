-- Takes the key, as ask.lua says. A record that it begins is a HASH: on a Cluster none may be thin. While
-- its slot moves a node refuses whatever is asked of a key that does not exist, so an inflation would
-- end after its DEL.
-- #include call.lua
if redis.call('EXISTS', key) == 0 then -- nobody holds it, nobody waits
  if ARGV[6] then
    redis.call('HDEL', key, '') -- as in ask.lua
  end
  local its = time[1] .. string.sub('00000' .. time[2], -6)
  redis.call('HSET', key, 'fence', its, 'last', token, 'h:' .. token, string.format('%d %s %s', math.floor(micros / 1000) + ARGV[2], its, ARGV[3]))
  redis.call('PEXPIRE', key, ARGV[2])
  return micros
end

-- #include ask.lua
