-- Counts the messages of a partition, and reads its counters.
--
-- KEYS, ARGV[1..2]  see common.lua
-- returns  {now in ms, how many there are with dead letters, dead letters with those that are too old, running, dead, due,
--           when the first was due in ms or '', how many keys are halted, some fields of COUNTS,
--           by how much the partition's clock is ahead of Redis's, in ms}
-- #include common.lua
return {
  NOW, redis.call('HLEN', MESSAGES), redis.call('ZCARD', DEAD), redis.call('ZCARD', RUNNING), redis.call('ZCOUNT', DEAD, now - dead_retention, '+inf'),
  redis.call('ZCOUNT', WAITING, '-inf', NOW),
  redis.call('ZRANGEBYSCORE', WAITING, '0', NOW, 'WITHSCORES', 'LIMIT', '0', '1')[2] or '', redis.call('HLEN', HALTS),
  redis.call('HMGET', COUNTS, 'claimed', 'paused', 'bytes', 'ended', 'letters',
    'enqueued', 'done', 'retried', 'expired', 'cancelled', 'dead', 'redriven', 'purged', 'superseded'),
  text(back_by),
}
