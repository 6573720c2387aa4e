-- What scripts on one key's record begin with.
--
-- KEYS[1]  the record: a HASH that expires when nobody can need it any more
--   fence    the fence of the latest grant; if that is exclusive, its
--            process may use BLOCK of them, from this one on
--   last     the token of the latest holder
--   h:TOKEN  a holder: end of its lease in ms, its fence, what it is. After a downgrade
--            the fence is FIRST-LAST: those that were used under its grant
-- and, once another token has asked for the key:
--   held     how many hold the key
--   next     no holder's lease ends before this, in ms
--   queue    tokens that wait, in order: TOKEN MARK ALIVE,WHAT and a space for each
--   waiting  how many those are
--   w:TOKEN  until when a waiting token is alive, in ms: later than its ALIVE in queue
--   watch    ids of lockers that are told when nobody holds the key
--   reserved until when the key is kept for parked work, in ms, and a number greater
--            than every fence that was granted before it was reserved
-- A record of a newer format has its number in v, and may have none of these, or is a STRING; see
-- format.lua. Nothing of it is changed.
-- ARGV[1]  the caller's owner token: LIMIT:LOCKER.SECRET. LIMIT is how many may hold the
--          key together with it: 1 is exclusive, 0 is without limit
--
-- MARK says how a waiting locker learns of its grant: '@' from a message, and it is gone
-- if this server has no subscription to its channel; '+' from a message, though its
-- subscription may be to another node, so that this one cannot tell; '~' by asking.
--
-- The caller may lose the reply, and ask again: a holder's token is answered with
-- the same grant.
-- #include constants.lua
-- #include format.lua
local NEVER = 1e15

local key, token = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local function ends(holder) return tonumber(string.sub(holder, 1, 13)) end
local record
local function fields(call, key)
  return call('HMGET', key, 'fence', 'held', 'last', 'next', 'queue', 'watch', 'h:' .. token, 'waiting', 'reserved', 'v')
end
local function read(key)
  local record = fields(redis.pcall, key)
  return not record.err and record or newer(key) and {[10] = true} or fields(redis.call, key)
end
