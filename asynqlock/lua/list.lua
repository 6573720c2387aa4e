-- The list of the tasks that wait for a key: a ZSET, whose members are
--   TASK      waits since its score, in ms; with AWAY added it was woken, and is on its way to a
--             server, or comes back by itself
--   g:TASK    was woken, and is expected until minus its score, in ms: until then it is one of those
--             for which no other is woken
--
-- KEYS[1]  the list
local list = KEYS[1]
local AWAY = 1000000000000000
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)

-- put sets a score. A number alone would be rounded.
local function put(score, member) redis.call('ZADD', list, string.format('%.0f', score), member) end

-- since is when a task began to wait; nil if it is not in the list.
local function since(task)
  local score = tonumber(redis.call('ZSCORE', list, task) or '')
  return score and (score >= AWAY and score - AWAY or score)
end
