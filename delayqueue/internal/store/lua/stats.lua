-- Counts the messages of a partition, and reads its counters.
--
-- KEYS, ARGV[1..2]  see common.lua
-- returns  {now in ms, how many there are with dead letters, dead letters with those that are too old, running, dead, due,
--           when the first was due in ms or '', how many keys are halted, some fields of c,
--           by how much the partition's clock is ahead of Redis's, in ms}
-- #include common.lua
return {
  NOW, redis.call('HLEN', m), redis.call('ZCARD', x), redis.call('ZCARD', w), redis.call('ZCOUNT', x, now - dead_retention, '+inf'),
  redis.call('ZCOUNT', z, '-inf', NOW),
  redis.call('ZRANGEBYSCORE', z, '0', NOW, 'WITHSCORES', 'LIMIT', '0', '1')[2] or '', redis.call('HLEN', h),
  redis.call('HMGET', c, 'claimed', 'paused', 'bytes', 'ended', 'letters',
    'enqueued', 'done', 'retried', 'expired', 'cancelled', 'dead', 'redriven', 'purged', 'superseded'),
  text(back_by),
}
