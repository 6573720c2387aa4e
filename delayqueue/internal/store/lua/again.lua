-- Tells a worker again what runs by its token, after a lost reply, with a new lease. One
-- that became too old meanwhile was not started: its claim runs out.
local function again(id, token, lease)
  local rec = redis.call('HGET', MESSAGES, id) or ''
  local tries, owner = (redis.call('HGET', ATTEMPTS, id) or ''):match('^[rR](......%d+ %d+ %d+ %d+ (%S*) .*)$')
  local key = key_of(rec)
  local member = id .. ' ' .. key
  if rec ~= '' and owner == token and not too_old(rec) and redis.call('ZSCORE', RUNNING, member) then
    add(RUNNING, member, text(now + lease))
    return delivery(member, rec, 'r' .. tries, key ~= '' and fifo(key, '2')[2] and 1 or 0, false, '')
  end
end
