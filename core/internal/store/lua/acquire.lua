-- Takes the key, as ask.lua says. A record that it begins is thin. On a Cluster acquirehash.lua is called in
-- its place.
-- #include call.lua
-- If its memory is full Redis refuses this, and lets those who find the key held go on.
local its = time[1] .. string.sub('00000' .. time[2], -6) -- micros; to format a number takes longer
local free = redis.pcall('SET', key, 'pk2 ' .. token .. ' ' .. its .. ' ' .. ARGV[3], 'NX', 'PX', ARGV[2])
if free and free.ok then -- nobody holds it, nobody waits
  return micros
end

-- #include ask.lua
