package core

import "time"

// Preference is what a caller would like to happen if its key is held, such as what an HTTP client asks for with
// Prefer. A policy honors it within its own bounds: a call never waits longer than its policy lets it, and is
// deferred only by a policy that defers. The zero Preference leaves everything to the policy.
type Preference struct {
	// Bounded says that the caller is willing to wait for Wait, and no longer.
	Bounded bool
	// Wait is how long the caller is willing to wait, if Bounded. Zero or less: not at all.
	Wait time.Duration
	// Async says that the caller prefers deferred work to waiting for the
	// key. With Bounded it is willing to wait first.
	Async bool

	queues *[]string // takes the prefixes of the queues that a policy stores calls in; nil: nobody asks
}

func storesUnder(p Preference, prefix string) {
	if p.queues != nil {
		*p.queues = append(*p.queues, prefix)
	}
}

// PreferencePolicy is implemented by a [ConflictPolicy] whose decision can be [Deferred], or that honors
// [Call].Prefer. One that only rejects, or waits as long as it likes, does not need it.
type PreferencePolicy interface {
	// Honors returns what is left of a preference when all is taken away that the policy does not do:
	//
	//   - a policy that may defer a call leaves Async. By this httplock knows, when a service starts, that requests
	//     may be parked, and refuses a guard that does not say on whose behalf;
	//   - one that waits for Wait at most, if the call has such a bound, leaves Bounded and Wait;
	//   - one that holds another policy returns [Honored] of that one, and adds what it does itself.
	//
	// It does not depend on the conflict.
	Honors(p Preference) Preference
}

// Honored returns the part of a preference that policy honors, for policies that hold it: none of it if
// policy is not a [PreferencePolicy].
func Honored(policy ConflictPolicy, p Preference) Preference {
	if honoring, ok := policy.(PreferencePolicy); ok && p != (Preference{}) {
		return honoring.Honors(p)
	}
	return Preference{}
}
