-- The ends of dead letters, and of their halts; after ended.lua.

-- Ends the halt of a key if a dead letter made it. Reports whether it did.
local function resume(key, id)
  local halt = redis.call('HGET', h, key)
  if halt and halt:sub(2) == id then
    remove(h, key)
    unrun[key] = 'resumed'
    return true
  end
end

-- Forgets a dead letter.
local function forget(id)
  local t = read(id, redis.call('HGET', m, id) or '')
  weigh(-dead_letter_size(id, t.n, redis.call('HSTRLEN', y, id)))
  remove(x, id)
  remove(y, id)
  remove(m, id)
  if t.long then
    freed[#freed + 1] = id
  end
  resume(t.key, id)
end
