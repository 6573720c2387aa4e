-- Publishes a message, as the other scripts do for keys like KEYS[1].
--
-- ARGV[1]  the channel
-- ARGV[2]  the message
-- returns  how many received it, as far as this server knows
return redis.call('PUBLISH', ARGV[1], ARGV[2])
