-- Moves away what has the name but not the type of one of a partition's keys.
--
-- KEYS, ARGV[1..2]  see common.lua
for i = 1, 19 do
  local kind = redis.call('TYPE', KEYS[i])
  kind = type(kind) == 'table' and kind.ok or kind
  local want = (i == 3 or i == 4 or i == 6 or i == 8 or i == 10) and 'zset' or 'hash'
  if i ~= 17 and kind ~= 'none' and kind ~= want then
    redis.call('RENAME', KEYS[i], KEYS[17])
    redis.call('PEXPIRE', KEYS[17], ARGV[2])
  end
end
return 0
