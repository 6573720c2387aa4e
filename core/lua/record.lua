-- Reads the record of one key: who holds it, and who waits for it.
--
-- KEYS[1]  the record: a HASH that expires when nobody can need it any more
--   fence    the greatest fencing token handed out so far, or reserved
--   held     how many hold the key
--   last     the entry of the latest of them
--   next     no holder's lease ends before this, in ms
--   h:ENTRY  a holder: end of its lease in ms, its fence, what it is
--   queue    who waits, in order: ENTRY MARK ALIVE,WHAT and a space for each
--   watch    ids of lockers that are told when nobody holds the key
-- ARGV[1]  the caller's entry: LIMIT:LOCKER.SECRET. LIMIT is how many may hold the
--          key together with it: 1 is exclusive, 0 is without limit
--
-- MARK says how a waiting locker learns of its grant: '@' from a message, and it is
-- gone if nobody receives that; '+' from a message, on a Cluster, where this node
-- cannot tell who receives it; '~' by asking.
--
-- The caller may lose the reply, and ask again: a holder's entry is answered with
-- the same grant.
local BLOCK = 65536 -- fences that an exclusive grant may use up in its process
local NEVER = 1e15

local key, entry = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local record = redis.call('HMGET', key, 'fence', 'held', 'last', 'next', 'queue', 'watch', 'h:' .. entry)
local exists = record[1]
local fence = tonumber(exists or 0) or 0
local held, last, soonest = tonumber(record[2] or 0), record[3] or '', tonumber(record[4]) or NEVER
local queue, watch, mine = record[5] or '', record[6] or '', record[7]

local function ends(holder) return tonumber(string.sub(holder, 1, 13)) end

if mine and ends(mine) <= now then
  mine = false
end
