-- The messages that scripts send to lockers.

local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')

local function channel(to) return prefix .. ':wake:' .. to end

-- send publishes to one locker. It returns how many received it, or nil if it
-- could not: channels may be forbidden.
local function send(to, words)
  return tonumber(redis.pcall('PUBLISH', channel(to), words .. ' ' .. name))
end

-- named is e as messages name it.
local function named(e) return string.sub(e, 1, -SECRET - 1) end

-- unsubscribed tells that no subscription to a locker's channel is on this server. It is false if
-- that cannot be found out.
local function unsubscribed(to)
  return tonumber(redis.pcall('PUBSUB', 'NUMSUB', channel(to))[2]) == 0
end

-- sendGrant sends a waiter's locker the grant of its token e: its fence, when its claim ends,
-- in ms, and 1 if others wait, 2 if none does and one more with its limit may hold the key,
-- else 0. message.go reads it. It returns true if e has to be granted the key now; false if
-- its locker is gone; nil if nothing can be published. What was published can arrive even if
-- this server counts nobody who receives it: a replica passes it on.
local function sendGrant(to, e, mark, its, claim, more)
  if mark == '@' and unsubscribed(to) then
    return false
  end
  return send(to, 'grant ' .. named(e) .. ' ' .. its .. ' ' .. claim .. ' ' .. more) and true
end
