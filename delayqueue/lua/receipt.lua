-- Answers of what must not be done twice: a call that is sent again, after a lost
-- reply, has the same token, and gets the first answer. It is written last: a
-- script that wrote before may write it when Redis has no memory left.
local function note(field, answer)
  local span = math.max(retention, 3600000)
  if call('HSET', k, field, answer) == 1 then -- one more: some that are old go
    local some = call('HRANDFIELD', k, STEPS, 'WITHVALUES')
    for i = 1, #some, 2 do
      if (whole(match(some[i + 1], '^%S+')) or 0) < now - span then
        call('HDEL', k, some[i])
      end
    end
  end
  keep(k, span)
end
