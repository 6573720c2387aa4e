//go:build soak

package ops_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// A large fleet in which everything goes wrong, each time for another key, is judged in about a second: not in half a minute.
func TestSoakFacts_OfAThousandProcesses(t *testing.T) {
	f := ops.Facts{Fleet: ops.Reading[ops.Fleet]{At: examined}}
	for i := range 1000 {
		p := ops.Process{ID: fmt.Sprint(i), Snapshot: ops.Snapshot{At: examined}}
		for j := range 64 {
			key := fmt.Sprintf("customer:order:%d", 64*i+j)
			p.Snapshot.Events = append(p.Snapshot.Events, ops.Event{At: examined, Source: "locks", Kind: "lost", Key: key})
			if j < 32 {
				p.Local.Leases = append(p.Local.Leases, core.LocalLease{Key: key, Held: time.Hour, TTL: time.Hour, Remaining: time.Hour, Contended: true})
			}
		}
		f.Fleet.Value.Processes = append(f.Fleet.Value.Processes, p)
	}
	began := time.Now()
	assert.NotEmpty(t, f.Findings(examined))
	assert.Less(t, time.Since(began), 20*time.Second)
}
