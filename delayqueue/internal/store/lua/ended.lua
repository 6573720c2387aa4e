-- The ends of messages that are not run; after finish.lua.

local unrun = {} -- keys that may have another head: one ended unrun, 'ended', or is halted no more, 'resumed'

-- Writes how messages ended, applies, and has the heads of the keys that have another one be due: now, or if it is not known
-- when to look at them. A key that has no message any more is announced: nobody is left to have it before others. A claim tells
-- a worker if nobody heard. One that runs by ATTEMPTS and not by RUNNING, since RUNNING was lost, is not due: for a lease it stays its worker's.
local function tidy(lease)
  if #endings[1] + #endings[2] + #endings[3] > 0 then
    remember()
  end
  apply()
  for key, why in pairs(unrun) do
    local head = fifo(key, '1')[1]
    local member = head and id_at(head, key) .. ' ' .. key
    if not head then
      announce(0, key)
      if redis.call('ZCARD', EMPTIED) < LARGE then
        add(EMPTIED, key, NOW)
      end
    elseif not redis.call('ZSCORE', RUNNING, member) and (why == 'resumed' or not redis.call('ZSCORE', WAITING, member)) then
      if not is_running(redis.call('HGET', ATTEMPTS, id_at(head, key))) then
        look_at(member, now)
      elseif lease then
        add(RUNNING, member, text(now + lease))
      end
    end
  end
  unrun = {}
  apply()
end

-- Writes a message's attempts to ATTEMPTS; was: those that were there. Without room its cause is not stored.
local function note_tries(id, key, principal, flag, tries, was)
  local counted = cause_size(was)
  local more = cause_size(tries) - counted
  if more > 0 and bytes + more > open_room() then
    tries = tries:match('^......%d+ %d+ %d+ %d+ %S* ') or tries
    more = cause_size(tries) - counted
  end
  weigh(more)
  use('k', key, more)
  use('p', principal, more)
  add(ATTEMPTS, id, flag .. tries)
end

-- Ends a queued message that is not to be run, as 'e', expired, 'c', cancelled, or 's', superseded by another message.
local function discard(id, key, rec, how, by)
  local t, state = read(id, rec), redis.call('HGET', ATTEMPTS, id)
  local tried, cause = (state or UNTRIED):match('^.(......%d+ %d+ %d+ %d+ )%S* (.*)$')
  tried, cause = tried or UNTRIED:sub(2, -2), cause or '' -- of junk
  remove(WAITING, id .. ' ' .. key)
  if t.long then
    freed[#freed + 1] = id
  end
  if key ~= '' then
    for _, place in ipairs({t.number, '~', '\127'}) do
      remove(FIFOS, key .. '\n' .. place .. id)
    end
    unrun[key] = unrun[key] or 'ended'
  end
  finish(id, key, t.principal, t.slot, t.n, state and state:sub(2), how,
    how .. ENDED_AT .. tried:sub(1, 6) .. rec:sub(20, t.payload - 1) .. tried:sub(7) .. ' ' .. (by or cause), rec:match('^..[=B]'))
end
