-- Tells long payloads of messages that were claimed. They live for an hour longer than the claims, at least.
--
-- KEYS     theirs
-- ARGV[1]  claim lease, in ms
-- returns  for each the payload, nil if it is not there
local needed = tonumber(ARGV[1]) + 3600000
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < needed then
    redis.call('PEXPIRE', key, needed)
  end
end
return redis.call('MGET', unpack(KEYS))
