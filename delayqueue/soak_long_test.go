//go:build soak

package delayqueue_test

import (
	"flag"
	"testing"
	"time"
)

// The suite of make soak-queue. All of it runs in short among the other tests.

var soakMessages = flag.Int("messages", 100_000, "how many messages the rounds of faults come to at least")

func TestSoak(t *testing.T) {
	t.Run("everything", func(t *testing.T) {
		round := faultsRound
		round.Messages, round.Keys, round.Enqueuers, round.Workers = 5000, 40, 8, 4
		round.test(t, *soakMessages)
	})
	t.Run("workers killed", func(t *testing.T) { killedRound.test(t, *soakMessages/50) })
	t.Run("workers stopped", func(t *testing.T) { stoppedRound.test(t, *soakMessages/100) })
	t.Run("parked and fresh calls", func(t *testing.T) { parkedRound.test(t, *soakMessages/50) })
	idle := idleMessages{n: 10_000, length: 20 * time.Second}
	t.Run("messages under an unknown key", idle.underAnUnknownKey)
	t.Run("messages that are handed back", idle.known)
	t.Run("others beside them", func(t *testing.T) { idle.delayNoOthers(t, 40*time.Second, 0.99) })
	t.Run("cluster", testFaultsInACluster)
}
