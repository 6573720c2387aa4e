-- What scripts and the Locker agree on. Go reads it too: see scripts.go.
local CLAIM = 1000 -- ms a waiter has to take up its grant
local ALIVE = 20000 -- ms after which a waiter is dead, unless it is refreshed
local AGED = 10000 -- with less than these ms left a waiter is written to live for ALIVE more, in w:TOKEN: the queue can be long
local BLOCK = 65536 -- fences that an exclusive grant may use up in its process
local QUEUE = 1024 -- tokens in the queue at most
local SECRET = 16 -- digits at the end of a token that no message shows: channels may have listeners that may not read records
-- A record lives for this many ms at least: PEXPIRE with a time that is over deletes
-- it, and what is written after that stays for ever.
local LEAST = 10
