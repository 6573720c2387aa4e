-- Stores a message that comes from a closed partition, unless its id is known here. Bounds do
-- not count: it was stored long ago.
--
-- KEYS, ARGV[1..4]  see common.lua and admit.lua
-- ARGV[5..12] id, key or '', principal or '', what its record has from the time it was enqueued on to the payload, payload,
--           its greatest age in ms, its attempts, c if a newer one may replace it, else -
-- returns   1 when it is stored here, 0 when this partition is closed too
-- #include common.lua
-- #include admit.lua
local id, key, principal, about, payload, age, attempts, flag = unpack(ARGV, 5, 12)
local known = redis.call('HGET', m, id)
for _, name in ipairs({y, unpack(KEYS, 12, 16)}) do
  known = known or redis.call('HGET', name, id)
end
if not known and not closed then
  local long = #payload > INLINE
  if long then
    add(b, id, payload)
  end
  local slot = flag == 'c' and 's' .. about:sub(27) or ''
  local number, size = next_seq(), message_size(19 + #about + #payload, id, key, principal, slot)
  full(key, principal, 0, 0) -- which counts
  admit(id, key, principal, '1' .. flag .. (long and 'b' or '-') .. number .. about .. (long and '' or payload), number,
    (key == '' or not headed[key]) and now, size)
  weigh(size)
  note_tries(id, key, principal, attempts:sub(1, 1), attempts:sub(2))
  span = math.max(0, age) + retention
  apply()
  local by = slot ~= '' and redis.call('HGET', u, slot)
  if by and redis.call('HEXISTS', m, by) == 1 then
    discard(id, key, redis.call('HGET', m, id), 's', by)
  elseif slot ~= '' then
    add(u, slot, id)
  end
end
conclude()
return not known and closed and 0 or 1
