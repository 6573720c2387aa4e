-- The partition's clock, for common.lua and page.lua. It is that of Redis, but is never set back: when that happens it runs on from
-- where it was, so that what is due stays due, and what is to come does so after the time that it had left. 'latest', in COUNTS, is what
-- it showed when that was noted last, and 'back' is what it is ahead by, in ms. When Redis's clock jumps forward again, as when it
-- is put right, this one stands, and is ahead by less. To jump is to go on by JUMP since 'latest', or by all of 'back'. A pause in
-- which nobody called looks like that too: then what waits does so for longer, by the pause or by 'back' at most.
local JUMP = 60000 -- ms; Workers call more often
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2] + back_by * 1000
local elapsed = math.floor(micros / 1000) - latest
local moved = elapsed < 0 and elapsed or elapsed >= math.min(JUMP, back_by) and math.min(elapsed, back_by) or 0
back_by, micros = back_by - moved, micros - moved * 1000
local now = math.floor(micros / 1000)
