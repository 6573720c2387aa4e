// Package conformance checks that every adapter behaves as every other one does.
//
// An adapter puts an httplock.Middleware into a framework's chain. What clients and handlers see is package
// httplock's, and an adapter must not change it. So there is one suite: an adapter hands it an Adapter, which builds
// the framework's engine from an App, and Run checks each behaviour over real HTTP. Responses to requests that were
// refused are compared with package httplock's own, byte for byte but for what is random.
//
// # What an adapter must do
//
//   - Hand Serve the framework's writer and request as they are, and the route, not
//     the path, as the name. Middleware in front of all routes lets a request pass
//     that matched none, if it can know.
//   - Give key functions the path parameters and the pattern, by httplock.Match.
//   - Run the rest of the chain in Exchange.Next, on the same goroutine, with the
//     request that Next is given: its context is the lease's, and its body may be in
//     memory. Put back the request that was there before in a defer, so that it is
//     back after a panic too.
//   - Have the rest of the chain write to what Exchange.Tee is given, and put back the
//     writer that was there before in the same defer. If Tee is asked for the whole response, what
//     the framework keeps back, or makes of a handler's error, is written before Next returns.
//   - Let panics pass, as they are.
//   - Hand on the error of a handler, if there is one, and make nothing of it. What
//     Serve wrote meanwhile is the response. An error that was answered for Tee is not
//     handed on: it would be answered twice.
//   - Stop the chain when Serve reports false.
//   - Tell by Exchange.Written whether a response was begun, by Flush and Hijack too.
//     A writer that is wrapped for this stays as able as the framework's: httplock.Track
//     makes such a writer, over one that does not know.
//   - Tell by Exchange.Status the response's status, as far as it is known when the guard ends.
//   - Panic with an error that wraps core.ErrInvalidOption when a constructor without an
//     error is given a mistake.
//   - Serve the recorder of a replay as it serves a connection: the engine is handed
//     to httplock.Replay.
//
// # A new adapter
//
// The toy in the tests is one: a router, an adapter for it and its registration, in less than 100 lines without the
// router. A framework that cannot have a behaviour lacks a Capability, and says why; there are no other exceptions.
// In the adapter's package, a test named TestConformance calls Run; make conformance finds it and prints the table.
//
// # The suite itself
//
// Mutants are adapters with a mistake. Each must fail what its mistake breaks, and
// each behaviour must be failed by a mutant, so that a new behaviour needs one.
package conformance
