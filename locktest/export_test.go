package locktest

import "time"

// SetPatience makes tests that fail do so sooner.
func SetPatience(t TB, d time.Duration) {
	before := waitTimeout
	waitTimeout = d
	t.Cleanup(func() { waitTimeout = before })
}
