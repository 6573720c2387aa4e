package core

import "time"

// Preference is what a caller would like to happen if its key is held, such as what
// an HTTP client says with Prefer. A policy honors it within what it would do
// anyway: a call never waits longer than its policy lets it, and is deferred only by
// a policy that defers. The zero Preference leaves everything to the policy.
type Preference struct {
	// Bounded says that the caller would wait for no longer than Wait.
	Bounded bool
	// Wait is how long the caller would wait. Zero, or less: not at all. It counts
	// only if Bounded.
	Wait time.Duration
	// Async says that the caller would have its work deferred rather than wait for the
	// key. If Bounded too, it would wait first.
	Async bool
}

// PreferencePolicy may be implemented by a policy that honors Call.Prefer.
type PreferencePolicy interface {
	// Honors returns the part of a preference that the policy honors. It does not
	// depend on the conflict.
	Honors(p Preference) Preference
}

// Honored returns the part of a preference that policy honors: nothing, if it is not a
// PreferencePolicy.
func Honored(policy ConflictPolicy, p Preference) Preference {
	if honoring, ok := policy.(PreferencePolicy); ok && p != (Preference{}) {
		return honoring.Honors(p)
	}
	return Preference{}
}
