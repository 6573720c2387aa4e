-- Records that are not a HASH.
--
-- A thin record is a STRING that expires when its lease is over:
--   pk2 TOKEN FENCE WHAT
-- One token holds the key, and no other has asked for it. record.lua inflates it.

-- text returns the STRING under a key; '' if there is none.
local function text(key) return redis.call('MGET', key)[1] or '' end

-- thin returns the token, fence and WHAT of a thin record; nil if text is not one.
local function thin(text) return string.match(text, '^pk2 (%S+) (%d+) (%S*)$') end

-- newer reports whether text is a record of a newer format: it begins with pk, its number and a
-- space. Such a record is not changed.
local function newer(text) return string.find(text, '^pk%d+ ') end
