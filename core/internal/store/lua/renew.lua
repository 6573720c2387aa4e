-- Lengthens leases that their callers still hold. It never shortens one, and never
-- creates one.
--
-- PEXPIRE comes first, since Redis runs it even when its memory is full, and then
-- lets the script go on: a holder does not lose its key because others
-- filled the server.
--
-- For a key of another type, and a record of a newer format, the reply is 0, and the
-- others are renewed. A thin record stays thin.
--
-- KEYS[i]     a key's record, as in record.lua
-- ARGV[2i-1]  its holder's token
-- ARGV[2i]    how much is to be left of its lease, in ms
-- returns     for each key 0 when the caller does not hold it, 1 when it does, 2
--             when it does and others wait
-- #include constants.lua
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local replies, texts = {}, redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local token, lease = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  if texts[i] then
    local its = 'pk2 ' .. token .. ' '
    local mine = string.sub(texts[i], 1, #its) == its
    replies[i] = mine and 1 or 0
    if mine and redis.call('PTTL', key) < lease then
      redis.call('PEXPIRE', key, math.max(lease, LEAST))
    end
  else
    local record = redis.pcall('HMGET', key, 'h:' .. token, 'queue', 'v')
    if record.err and not string.find(record.err, 'WRONGTYPE', 1, true) then
      return record
    end
    local waiting = record[2] and record[2] ~= ''
    local deadline, rest = string.match(record[1] or '', '^(%d+)(.*)$')
    if record[3] or not deadline or tonumber(deadline) <= now then
      replies[i] = 0
    else
      if tonumber(deadline) < now + lease then
        local left = waiting and lease + ALIVE or lease -- a dead holder does not take the queue with it
        redis.call('PEXPIRE', key, math.max(left, redis.call('PTTL', key), LEAST))
        redis.call('HSET', key, 'h:' .. token, string.format('%d%s', now + lease, rest))
      end
      replies[i] = waiting and 2 or 1
    end
  end
end
return replies
