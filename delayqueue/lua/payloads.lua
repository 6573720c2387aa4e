-- Tells long payloads. A replica might not have them yet.
--
-- KEYS     theirs
-- returns  for each the payload, nil if it is not there
return redis.call('MGET', unpack(KEYS))
