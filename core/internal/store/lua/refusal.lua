-- refusal returns the reply to a call that does not wait, if another one holds its key under a thin record, and one of the two
-- is exclusive; see ask.lua. The record stays thin, so the holder's release stays short.
local function refusal(key, token, text)
  local holder, fence = string.match(text or '', '^pk2 (%S+) (%d+) ')
  if holder and holder ~= token and (string.sub(holder, 1, 2) == '1:' or string.sub(token, 1, 2) == '1:') then
    local rest = redis.call('PTTL', key)
    if rest >= 0 then
      return {0, rest, now, 0, 0, tonumber(fence)}
    end
  end
end
