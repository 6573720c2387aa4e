-- Reads the manifest of a queue, after changing it if its revision is still the one that the caller has read.
--
-- KEYS[1]  the manifest
-- ARGV[1]  the revision that the caller has read, '' if there was none; without it nothing is changed
-- ARGV[2..] fields and values to set
-- returns   {revision, layout, partitions, service, encrypted}, '' for a field that is not set
if ARGV[1] and (redis.call('HGET', KEYS[1], 'revision') or '') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'revision', string.format('%.0f', (tonumber(ARGV[1]) or 0) + 1), unpack(ARGV, 2))
end
local found = redis.call('HMGET', KEYS[1], 'revision', 'layout', 'partitions', 'service', 'encrypted')
for i, value in ipairs(found) do
  found[i] = value or ''
end
return found
