-- Reports the holders and waiters of a key, and until when it is reserved. It changes
-- nothing, and shows no secrets: of a token only LIMIT:LOCKER.
--
-- KEYS[1]  the record, as in record.lua
-- ARGV[1]  how many holders to report, at most
-- ARGV[2]  how many waiters to report, at most
-- returns  {server's time in µs, how many hold it, how many wait, the holders, the
--          waiters, the end of its reservation in ms, the reservation's stamp, 1 if the record is
--          of a newer format, 2 if it is not a record, else 0}: a holder is LIMIT:LOCKER, the end of its
--          lease in ms, or 0 if its record has no expiry, its fence and its description; a waiter is LIMIT:LOCKER and its description
-- #include format.lua
local key = KEYS[1]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local text = text(key)
local holder, its, what = thin(text)
if holder then
  local who, left = string.match(holder, '^(%d+:.*)%.'), redis.call('PTTL', key)
  local ends = left < 0 and 0 or now + left
  return {micros, 1, 0, {string.format('%s %d %s %s', who, ends, its, what)}, {}, 0, 0, 0}
elseif newer(text) then
  return {micros, 1, 0, {}, {}, 0, 0, 1}
end
local record = redis.pcall('HMGET', key, 'held', 'queue', 'reserved', 'fence', 'v')
if record.err then
  return record
elseif record[5] or not record[4] and redis.call('EXISTS', key) == 1 then
  return {micros, 1, 0, {}, {}, 0, 0, record[5] and 1 or 2}
end

-- A key can have any number of shared holders: stop when there are enough.
local most, holders, seen, living, cursor = tonumber(ARGV[1]), {}, {}, 0, '0'
repeat
  local page = redis.call('HSCAN', key, cursor, 'COUNT', 100)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local field, ends, rest = page[2][i], string.match(page[2][i + 1], '^(%d+) (.*)$')
    local who = string.match(field, '^h:(%d+:.*)%.')
    if who and ends and tonumber(ends) > now and not seen[field] then
      seen[field] = true
      living = living + 1
      if living <= most then
        holders[living] = who .. ' ' .. ends .. ' ' .. rest
      end
    end
  end
until cursor == '0' or living >= most
local held = living
if cursor ~= '0' then
  held = math.max(living, tonumber(record[1] or 0) or 0)
end

local waiters, waiting = {}, 0
for who, secret, alive, what in string.gmatch(record[2] or '', '(%d+:[^@+~]*)(%.%x*)[@+~](%d+),(%S*) ') do
  if tonumber(alive) > now or tonumber(redis.call('HGET', key, 'w:' .. who .. secret) or 0) > now then
    waiting = waiting + 1
    if waiting <= tonumber(ARGV[2]) then
      waiters[waiting] = who .. ' ' .. what
    end
  end
end
local reserved, stamp = string.match(record[3] or '0 0', '^(%d+) (%d+)$')
reserved = tonumber(reserved or 0)
return {micros, held, waiting, holders, waiters, reserved > now and reserved or 0, tonumber(stamp or 0), 0}
