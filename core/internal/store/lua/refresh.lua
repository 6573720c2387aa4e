-- Keeps tokens that wait for their keys alive, and returns their places. It writes only when
-- a token would soon count as dead.
--
-- KEYS[i]  a key's record, as in record.lua
-- ARGV[i]  a token of the caller's in its queue
-- returns  server's time in ms, then for each key: ms left of a holder's lease, at least;
--          the token's place in the queue; length of the queue. The place is 0 if the
--          caller has to ask: the token is not in the queue, or the key can be had, or
--          the record is foreign
-- #include constants.lua
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local replies = {now}
for i, key in ipairs(KEYS) do
  local token = ARGV[i]
  local record = redis.pcall('HMGET', key, 'queue', 'waiting', 'held', 'last', 'next', 'reserved', 'w:' .. token, 'v')
  if record.err and not string.find(record.err, 'WRONGTYPE', 1, true) then
    return record
  end
  local queue, last = record[1] or '', record[4] or ''
  local from = string.find(queue, token, 1, true)
  local left, place, waiting = 0, 0, 0
  if from and not record[8] then
    waiting = tonumber(record[2])
    local alive = string.match(queue, '^[@+~](%d+),', from + #token)
    if math.max(tonumber(alive), tonumber(record[7] or 0)) < now + AGED then
      redis.call('HDEL', key, '') -- removes nothing; Redis runs it even when its memory is full, and then lets the script go on
      redis.call('HSET', key, 'w:' .. token, string.format('%d', now + ALIVE))
    end
    if tonumber(record[3] or 0) > 0 then
      local ends = tonumber(record[5])
      if ends <= now and (string.sub(token, 1, 2) == '1:' or string.sub(last, 1, 2) == '1:') then -- the latest holder's end is exact
        ends = tonumber(string.sub(redis.call('HGET', key, 'h:' .. last) or '0', 1, 13))
      end
      left = math.max(ends - now, 0)
    end
    local reserved = tonumber(string.match(record[6] or '0', '^%d+'))
    if left > 0 or reserved > now then
      place = math.floor((from - 1) * waiting / #queue + 0.5) + 1
    end
  end
  replies[3 * i - 1], replies[3 * i], replies[3 * i + 1] = left, place, waiting
end
return replies
