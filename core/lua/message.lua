-- What scripts tell lockers.

-- send publishes to one locker. It returns how many heard it, or nil if it could
-- not: channels may be forbidden.
local function send(to, words)
  local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')
  local heard = redis.pcall('PUBLISH', prefix .. ':wake:' .. to, words .. ' ' .. name)
  return tonumber(heard)
end

-- named is e as messages name it.
local function named(e) return string.sub(e, 1, -SECRET - 1) end

-- sendGrant tells a waiter's locker that its entry e is granted the key: with which fence,
-- when its claim ends, in ms, and 1 if others wait, 2 if none does and one more with its limit
-- may hold the key, else 0. parseGrant reads it.
local function sendGrant(to, e, its, claim, more)
  return send(to, 'grant ' .. named(e) .. ' ' .. its .. ' ' .. claim .. ' ' .. more)
end
