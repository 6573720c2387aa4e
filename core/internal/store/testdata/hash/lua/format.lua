-- newer tells whether what is under a key, and is no HASH, is a record of a newer format: a STRING
-- that begins with pk, its number and a space. Nothing of it is changed.
local function newer(key)
  local text = redis.call('MGET', key)[1] -- false for other types
  return text and string.find(text, '^pk%d+ ')
end
