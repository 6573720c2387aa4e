-- Answers of what must not be done twice: a call that is sent again, after a lost
-- reply, has the same token, and gets the first answer. It is written last: a
-- script that wrote before may write it when Redis has no memory left.
local function receipt(token)
  local answer = redis.pcall('GET', base .. ':receipt:' .. token)
  return type(answer) == 'string' and cjson.decode(answer) or nil
end

local function give_receipt(token, answer)
  redis.call('SET', base .. ':receipt:' .. token, cjson.encode(answer), 'PX', retention)
end
