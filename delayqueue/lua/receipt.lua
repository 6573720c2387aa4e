-- Answers of what must not be done twice: a call that is sent again, after a lost
-- reply, has the same token, and gets the first answer. It is written last: a
-- script that wrote before may write it when Redis has no memory left.
local function receipt(token)
  local answer = call('HGET', k, token)
  return answer and cjson.decode((string.gsub(answer, '^%d+ ', '')))
end

local function give_receipt(token, answer)
  note(token, string.format('%.0f', now) .. ' ' .. cjson.encode(answer))
end
