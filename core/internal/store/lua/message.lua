-- The messages that scripts send to lockers.

-- send publishes to one locker. It returns how many received it, or nil if it
-- could not: channels may be forbidden.
local function send(to, words)
  local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')
  local receivers = redis.pcall('PUBLISH', prefix .. ':wake:' .. to, words .. ' ' .. name)
  return tonumber(receivers)
end

-- named is e as messages name it.
local function named(e) return string.sub(e, 1, -SECRET - 1) end

-- sendGrant sends a waiter's locker the grant of its entry e: its fence, when its claim ends,
-- in ms, and 1 if others wait, 2 if none does and one more with its limit may hold the key,
-- else 0. message.go reads it.
local function sendGrant(to, e, its, claim, more)
  return send(to, 'grant ' .. named(e) .. ' ' .. its .. ' ' .. claim .. ' ' .. more)
end
