package core

import "time"

// Preference is what a caller would like to happen if its key is held, such as what an HTTP client
// asks for with Prefer. A policy honors it within its own bounds: a call never waits longer than
// its policy lets it, and is deferred only by a policy that defers. The zero Preference leaves
// everything to the policy.
type Preference struct {
	// Bounded says that the caller is willing to wait for Wait, and no longer.
	Bounded bool
	// Wait is how long the caller is willing to wait, if Bounded. Zero or less: not at all.
	Wait time.Duration
	// Async says that the caller prefers deferred work to waiting for the
	// key. With Bounded it is willing to wait first.
	Async bool
}

// PreferencePolicy may be implemented by a [ConflictPolicy] that honors [Call].Prefer.
type PreferencePolicy interface {
	// Honors returns the part of a preference that the policy honors. It does not
	// depend on the conflict.
	Honors(p Preference) Preference
}

// Honored returns the part of a preference that policy honors: none of it if policy is not a
// [PreferencePolicy].
func Honored(policy ConflictPolicy, p Preference) Preference {
	if honoring, ok := policy.(PreferencePolicy); ok && p != (Preference{}) {
		return honoring.Honors(p)
	}
	return Preference{}
}
