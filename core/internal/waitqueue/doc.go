// Package waitqueue decides for the calls of one process that wait for one key: who asks Redis
// and when, who gets a grant, who fails in an outage, and which owner tokens have to be cancelled.
//
// It is a state machine. Events go in, with the time; what is to be done comes out. It has no
// clock, no I/O and no mutex; the package core has those. Its states and what each event does in
// them are in states.md.
//
// The files follow a call: queue.go has who waits, question.go the questions to Redis, refresh.go
// when to ask again, grant.go and admission.go what becomes of a grant, and release.go its end.
package waitqueue
