// Package waitqueue decides for the calls of one process that wait for one key: who asks Redis
// and when, who gets a grant, who fails in an outage, and which owner tokens have to be cancelled.
//
// It is a state machine. Events go in, with the time; what is to be done comes out. It has no
// clock, no I/O and no mutex; the package core has those.
package waitqueue
