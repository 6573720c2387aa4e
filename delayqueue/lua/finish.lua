-- Ends a message, as done or as a dead letter, if the caller holds its claim.
-- Sent again by the same caller it answers as the first time did.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  id
-- ARGV[4]  key, or ''
-- ARGV[5]  token of the claim
-- ARGV[6]  'done' or 'dead'
-- ARGV[7]  cause of death
-- ARGV[8]  1 when the attempt lost a lease, else 0
-- returns  {1 when the claim was the caller's, else 0; 1 when a message is due now, else 0}
local id, key, token = ARGV[3], ARGV[4], ARGV[5]
local member = id .. ' ' .. key
local claim, m = claimed(id, key, token)
if claim == 'lost' then
  return {0, 0}
elseif claim == 'settled' then
  return {1, any_due()}
end

clear_sets() -- or a damaged one would stop this half way
redis.call('ZREM', running, member)
redis.call('HSET', record(id), 'settled', token, 'losses', m.losses + ARGV[8])
if ARGV[6] == 'dead' then
  bury(member, id, key, ARGV[7])
else
  leave(member, id, key)
  redis.call('HDEL', record(id), 'payload', 'owner', 'nudged')
  redis.call('HSET', record(id), 'state', 'done')
  redis.call('PEXPIRE', record(id), num(retention))
end
return {1, any_due()}
