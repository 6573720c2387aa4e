-- A copy of a call may arrive long after its caller was served in reply to another one, or has left. It grants nothing.
--
-- ARGV[3]  until when the call may run, by this server's clock, in ms; 0 if its caller does not know the clock
-- returns  {2, 0, server's time in ms, 0} if that is over
if ARGV[3] - now < 0 and ARGV[3] ~= '0' then
  return {2, 0, now, 0}
end
