// Package waitqueue decides for the calls of one process that wait for one key: which call asks Redis
// and when, which gets a grant, which fail in an outage, and which owner tokens have to be cancelled.
//
// It is a state machine: event and time → [Queue] → actions. It has no
// clock, no I/O and no mutex; package core has those. The table in states.md lists its states and what
// each event does in them.
//
// The files follow a call: queue.go has the calls that wait, request.go the requests to Redis, refresh.go
// when to ask again, grant.go and admission.go what happens to a grant, and release.go its end.
package waitqueue
