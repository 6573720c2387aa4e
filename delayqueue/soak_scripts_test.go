//go:build soak

package delayqueue

import "testing"

// TestSoak_Scripts is the scripts' part of make soak-queue.
func TestSoak_Scripts(t *testing.T) {
	t.Run("model", func(t *testing.T) { testModel(t, 1000) })
	t.Run("mutants", TestModel_MutantsAreCaught)
}
