-- Gives a message back to the queue, if the caller holds its claim. It keeps its
-- place in the line of its key. Sent again by the same caller the script answers
-- as the first time did.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  id
-- ARGV[4]  key, or ''
-- ARGV[5]  token of the claim
-- ARGV[6]  'retry': the attempt failed
--          'conflict': a key was held; the attempt does not count, the conflict does
--          'return': nothing happened; nothing counts
-- ARGV[7]  delay before it becomes due, in ms
-- ARGV[8]  cause of the failure
-- ARGV[9]  1 when the attempt lost a lease, else 0
-- ARGV[10] 1 when it waits for its own key: nudge.lua makes it due, else 0
-- returns  {1 when the claim was the caller's, else 0; 1 when a message is due now, else 0}
--          {2, ...} when the claim was the caller's, and the message expired: it
--          would be too old for its next attempt, and does not hold its key's
--          line up until then
local id, key, token, how = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local member = id .. ' ' .. key
local claim, m = claimed(id, key, token)
if claim == 'lost' then
  return {0, 0}
elseif claim == 'settled' then
  return {m.state == 'expired' and 2 or 1, any_due()}
end

-- A nudge that came between the conflict and here found the message running and
-- left its mark: the key was freed since, so do not wait for it.
local waits = ARGV[10] == '1'
local at = now + tonumber(ARGV[7])
if waits and m.nudged then
  at = now
end

clear_sets() -- or a damaged one would stop this half way
redis.call('ZREM', running, member)
redis.call('HDEL', record(id), 'owner', 'nudged')
redis.call('HSET', record(id), 'state', 'queued', 'settled', token, 'due', num(at), 'losses', m.losses + ARGV[9])
if how == 'retry' then
  redis.call('HSET', record(id), 'cause', ARGV[8])
  if at >= m.not_after then
    expire(member, id, key)
    return {2, any_due()}
  end
else
  redis.call('HSET', record(id), 'attempts', math.max(0, m.attempts - 1))
end
if how == 'conflict' then
  redis.call('HSET', record(id), 'conflicts', m.conflicts + 1)
end
if waits then
  redis.call('HSET', record(id), 'wait', 'key')
end
redis.call('ZADD', open, num(m.not_after), member)
keep(open, redis.call('PTTL', record(id)))
make_due(member, at)
return {1, any_due()}
