-- The messages that scripts send to lockers, but for grants: see grant.lua.

local prefix, name = string.match(key, '^(.-):lock{}:(.*)$')

-- send publishes to one locker. It returns how many received it, or nil if it
-- could not: the user may lack the right to channels.
local function send(to, words)
  return tonumber(redis.pcall('PUBLISH', prefix .. ':wake:' .. to, words .. ' ' .. name))
end

-- named is e as messages name it.
local function named(e) return string.sub(e, 1, -SECRET - 1) end
