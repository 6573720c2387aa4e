-- Ends the message of a closed partition that a newer one, stored in another partition, replaces, unless it was given to a
-- handler.
--
-- KEYS, ARGV[1..2]  see common.lua
-- ARGV[3]  key
-- ARGV[4]  its record from the lengths on, without the payload
-- ARGV[5]  id of the newer message; '' to change nothing
-- ARGV[6]  id of the message to end if a newer one may replace it, or '' for any that may be replaced
-- returns  {without ARGV[5] the id of the newest message, or ''; 1 when this is closed, no message is queued or runs here and no
--           key is halted, else 0}
-- #include common.lua
-- #include finish.lua
-- #include ended.lua
-- #include replace.lua
local key, slot, by, which = ARGV[3], 's' .. ARGV[4], ARGV[5], ARGV[6]
redis.call('HDEL', c, '')
local id = redis.call('HGET', u, slot)
local old = by ~= '' and id ~= by and (which == '' or which == id) and replaceable(slot, key)
if old then
  discard(old.id, key, old.rec, 's', by)
end
tidy()
local found = by == '' and newest(slot, key) or ''
local open = redis.call('HLEN', m) - redis.call('ZCARD', x) + redis.call('HLEN', h)
return conclude({found, closed and open == 0 and 1 or 0})
