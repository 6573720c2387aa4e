-- Publishes a grant to a locker: its id, its token e, the fence, when its claim ends, in ms, and, as more, 1 if
-- others wait, 2 if none does and one more with its limit may hold the key, else 0.
-- message.go reads it. sent is then true: e has to be granted the key now. It is false if the locker is gone, which
-- this server knows if its subscription is here; nil if nothing can be published. What was published can arrive even if
-- this server counts nobody who receives it: a replica passes it on.
--
-- No function, which a script makes anew at each call: in a hand-over Redis has slept, and what is not in its
-- processor's caches takes time.
local channel = prefix .. ':wake:' .. id
local sent = not here or tonumber(redis.pcall('PUBSUB', 'NUMSUB', channel)[2]) ~= 0
if sent then
  sent = tonumber(redis.pcall('PUBLISH', channel,
    'grant ' .. string.sub(e, 1, -SECRET - 1) .. ' ' .. fence .. ' ' .. claim .. ' ' .. more .. ' ' .. name)) and true
end
