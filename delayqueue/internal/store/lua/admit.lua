-- Stores messages in a partition, within its bounds, for enqueue.lua and redrive.lua; after common.lua.
--
-- ARGV[3]  how many queued and running messages the partition may have; after spaces, how many of them may be of one
--          key, and how many bytes those of a key and those of a principal may take
local max_depth, max_fifo, max_key, max_principal = ARGV[3]:match('^(%d+) (%d+) (%d+) (%d+)$')
max_depth, max_fifo, max_key, max_principal = tonumber(max_depth), tonumber(max_fifo), tonumber(max_key), tonumber(max_principal)

all = redis.call('HLEN', MESSAGES)
local lengths, headed = {}, {} -- of keys: how many messages they have at most; whether one is not delayed

if all == 0 then -- a count that was lost is right again
  bytes, letter_bytes = 0, 0
end

-- What is full for so many messages more, one or none, of so many bytes.
local function full(key, principal, n, size)
  if key ~= '' then
    local used = use('k', key)
    if not lengths[key] then
      lengths[key] = math.floor(used / message_size(0, '', 'k', '', '')) -- at most: count only near the bound
      if lengths[key] + 64 > max_fifo then
        lengths[key] = redis.call('ZLEXCOUNT', FIFOS, '[' .. key .. '\n', '(' .. key .. '\11')
      end
      headed[key] = lengths[key] > 0 and #fifo(key, '1') > 0
      if lengths[key] == 0 then
        uses['k' .. key], used = 0, 0
      end
    end
    if lengths[key] + n > max_fifo or used + size > max_key then
      return 'key full'
    end
  end
  if principal ~= '' and use('p', principal) + size > max_principal then
    return 'principal full'
  end
  local deep = all + n > max_depth and all + n - redis.call('ZCARD', DEAD) > max_depth
  return (deep or bytes + size > open_room()) and 'queue full' or nil
end

-- Stores a message. Its place is its number, '~' or '\127'; with a key it has gone through full() before.
-- If it is due at a time, WAITING has it.
local function admit(id, key, principal, rec, place, due, size)
  add(MESSAGES, id, rec)
  if key ~= '' then
    add(FIFOS, key .. '\n' .. place .. id, '0')
    lengths[key] = lengths[key] + 1
    use('k', key, size)
  end
  use('p', principal, size)
  if due then
    look_at(id .. ' ' .. key, due)
  end
end
