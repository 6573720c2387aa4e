-- What is under a key, and is no HASH.
--
-- A thin record is a STRING, and expires when its lease is over:
--   pk2 TOKEN FENCE WHAT
-- One token holds the key, and no other has asked for it. See record.lua, which inflates it.

-- text is the STRING under a key; '' if there is none.
local function text(key) return redis.call('MGET', key)[1] or '' end

-- thin returns the token, fence and WHAT of a thin record; nil if it is none.
local function thin(text) return string.match(text, '^pk2 (%S+) (%d+) (%S*)$') end

-- newer tells whether a text is a record of a newer format: it begins with pk, its number and a
-- space. Nothing of it is changed.
local function newer(text) return string.find(text, '^pk%d+ ') end
