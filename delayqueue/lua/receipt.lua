-- Answers of what must not be done twice: a call that is sent again, after a lost
-- reply, has the same token, and gets the first answer. It is written last: a
-- script that wrote before may write it when Redis has no memory left.
-- Notes what a call answers, for when it is sent again.
local function note(field, answer)
  if call('HSET', k, field, answer) == 1 and call('HLEN', k) % 256 == 0 then
    local all = call('HGETALL', k)
    for i = 1, #all, 2 do
      if (whole(string.match(all[i + 1], '^%S+')) or 0) < now - math.max(retention, 3600000) then
        call('HDEL', k, all[i])
      end
    end
  end
  keep(k, math.max(retention, 3600000))
end

local function receipt(token)
  local answer = call('HGET', k, token)
  return answer and cjson.decode((string.gsub(answer, '^%d+ ', '')))
end

local function give_receipt(token, answer)
  note(token, NOW .. ' ' .. cjson.encode(answer))
end
