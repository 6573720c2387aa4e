package locktest

import "time"

// SetPatience makes tests that fail do so sooner.
func SetPatience(t TB, d time.Duration) {
	before := patience
	patience = d
	t.Cleanup(func() { patience = before })
}
