-- Stores a message that comes from a closed partition, unless its id is known here. Bounds do
-- not count: it was stored long ago.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..11] id, key or '', what its record has from the time it was enqueued on to the payload, payload, its
--           greatest age in ms, its attempts, c if a newer one may replace it, else -
-- returns   1 when it is stored here, 0 when this partition is closed too
-- #include common.lua
-- #include admit.lua
local id, key, text, payload, age, attempts, parked = unpack(ARGV, 5, 11)
local known = call('HGET', m, id)
for _, i in ipairs({9, 12, 13, 14, 15, 16}) do -- y and the buckets
  known = known or call('HGET', KEYS[i], id)
end
local shut = not known and closed()
if not known and not shut then
  local body = #payload > INLINE
  if body then
    append(admitted.b, id, payload)
  end
  local what, principal = about(text, 27)
  local bytes = message_size(19 + #text + #payload)
  full(key, principal, 0) -- which counts
  occupy(key, principal, bytes)
  count('bytes', bytes)
  admit(id, key, parked, text .. (body and '' or payload), body, math.max(0, tonumber(age)))
  file()
  call('HSET', r, id, attempts)
  live(0, r)
  local by = parked == 'c' and call('HGET', u, 's' .. what)
  if by and call('HEXISTS', m, by) == 1 then
    give_up(id, key, call('HGET', m, id), 's', by)
  elseif parked == 'c' then
    call('HSET', u, 's' .. what, id)
    live(0, u)
  end
end
flush()
return shut and 0 or 1
