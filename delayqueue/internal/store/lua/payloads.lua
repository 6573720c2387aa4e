-- Reads long payloads of messages that were claimed, and lets them live for at least an hour longer than the claims.
--
-- KEYS     the payloads' keys
-- ARGV[1]  claim lease, in ms
-- returns  for each the payload, nil if there is none
local needed = tonumber(ARGV[1]) + 3600000
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < needed then
    redis.call('PEXPIRE', key, needed)
  end
end
return redis.call('MGET', unpack(KEYS))
