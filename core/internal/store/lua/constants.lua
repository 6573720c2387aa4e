-- The numbers that scripts and the Locker share. Go reads them from this file: see scripts.go.
local CLAIM = 1000 -- ms that a waiter has to take up its grant
local ALIVE = 20000 -- ms after which a waiter counts as dead, unless it is refreshed
local AGED = 10000 -- with fewer ms than these left a refresh writes ALIVE more, to w:TOKEN, since the queue can be long
local BLOCK = 65536 -- fences that an exclusive grant may use in its process
local USUAL = 15000 -- the TTL of a lease whose record does not say one, in ms; processes of other versions read it so
local QUEUE = 1024 -- tokens in the queue at most
local SECRET = 16 -- digits at the end of a token that no message shows: a channel may have listeners without the right to read records
-- The shortest expiry of a record, in ms: PEXPIRE with a time that is over deletes
-- it, and a record that is then written anew would never expire.
local LEAST = 10
