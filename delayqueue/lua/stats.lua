-- Counts the messages of a partition.
--
-- KEYS, ARGV[1..2]  see common.lua
-- returns  {now in ms, how many there are with dead letters, dead letters with those that are too old, running, dead, due,
--           when the first was due in ms or '', how many keys are halted, some fields of c}
-- #include common.lua
return {
  NOW, call('HLEN', m), call('ZCARD', x), call('ZCARD', w), call('ZCOUNT', x, now - dead_retention, '+inf'),
  call('ZCOUNT', z, '-inf', NOW), call('ZRANGEBYSCORE', z, '0', NOW, 'WITHSCORES', 'LIMIT', '0', '1')[2] or '', call('HLEN', h),
  call('HMGET', c, 'paused', 'bytes', 'ended0', 'ended1', 'ended2', 'ended3', 'ended4',
    'enqueued', 'done', 'retried', 'expired', 'cancelled', 'dead', 'redriven', 'purged', 'superseded'),
}
