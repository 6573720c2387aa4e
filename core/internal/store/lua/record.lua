-- The format of a key's record, and how it is read; after call.lua.
--
-- KEYS[1]  the record: a thin one, as in format.lua, until another token asks for the key; then
--          a HASH that expires when nobody can need it any more
--   fence    the fence of the latest grant; if that is exclusive, its
--            process may use BLOCK of them, from this one on
--   last     the token of the latest holder
--   h:TOKEN  a holder: end of its lease in ms, its fence, its description. After a downgrade
--            the fence is FIRST-LAST: those that were used under its grant
-- and usually:
--   held     how many hold the key; absent: one
--   next     no holder's lease ends before this, in ms
--   queue    tokens that wait, in order: TOKEN MARK ALIVE,WHAT and a space for each
--   waiting  how many tokens wait
--   w:TOKEN  until when a waiting token is alive, in ms: later than its ALIVE in queue
--   watch    ids of lockers that get a message when nobody holds the key
--   reserved until when the key is reserved for parked work, in ms, and the reservation's stamp, a number
--            greater than every fence that was granted before it was reserved
-- A record of a newer format has its number in v, and may have none of these, or is a STRING; see
-- format.lua. It is not changed.
--
-- MARK says how a waiting locker learns of its grant: '@' by a message, and it is gone
-- if this server has no subscription to its channel; '+' by a message, but its
-- subscription may be to another node, so that this one cannot tell; '~' by asking.
--
-- The caller may lose the reply, and ask again: the reply to a holder's token is
-- the same grant again.
-- #include format.lua
local NEVER = 1000000000000000

local function ends(holder) return tonumber(string.sub(holder, 1, 13)) end
local record
local function fields(call, key)
  return call('HMGET', key, 'fence', 'held', 'last', 'next', 'queue', 'watch', 'h:' .. token, 'waiting', 'reserved', 'v')
end

-- read reads the record, and inflates a thin one: DEL → HSET → PEXPIRE, as a HASH with one holder whose lease ends
-- when the thin record would have expired. DEL comes first, since
-- Redis runs it even when its memory is full, and then lets the script go on. On a Cluster there
-- are no thin records: see acquire.lua.
--
-- A thin record without an expiry (PERSIST, RESTORE) is held, and nobody knows until when. Its holder's next renewal gives
-- it an expiry again; until then it is as foreign to all others, but for forced.
local function read(key, forced)
  local record = fields(redis.pcall, key)
  if not record.err then
    return record
  end
  local text = text(key)
  local holder, its, what = thin(text)
  if not holder then
    return newer(text) and {[10] = true} or fields(redis.call, key) -- which fails
  end
  local left = redis.call('PTTL', key)
  if left < 0 then
    if holder ~= token and not forced then
      return {[10] = true}
    end
    left = tonumber(string.match(what, '^[^;]*;[^;]*;(%d+)$') or USUAL)
  end
  local grant = string.format('%d %s %s', now + left, its, what)
  redis.call('DEL', key)
  redis.call('HSET', key, 'fence', its, 'last', holder, 'h:' .. holder, grant)
  redis.call('PEXPIRE', key, left + ALIVE) -- the longest that a queue can need
  return {its, 1, holder, now + left, false, false, holder == token and grant, false, false, false, left + ALIVE}
end
