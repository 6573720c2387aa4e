// Package history records what clients of a lock saw, and checks whether a lock on leases can have behaved so.
//
// Three checkers read the same history:
//
//   - Windows: from the moment a holder saw its grant to the last moment at which
//     its context was alive, nobody else held the key (of a shared key: no
//     exclusive holder; of a counted one: no more than its limit).
//   - Fences: the fences of a key grow in the order of its grants, as far as
//     that order can be seen from outside.
//   - Linear: there is one order of grants, refusals, releases and ends of leases
//     that explains every answer; found by porcupine.
//
// Before them SetApart takes out the grants that a server lost when it took another's place
// after a failover, by what that server had of them, and checks that their holders were told.
//
// A window is evidence: it begins after the grant was returned and ends at a moment before which the context was looked
// at and found alive. The true one is longer, so that a checker never blames a lock for a client that was stopped, or
// killed, between two instructions.
//
// All times of a history are read from one clock, the machine's monotonic one, which its processes share.
package history
