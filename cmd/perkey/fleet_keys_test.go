package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// Whatever the keys are, a table stays one: a line each, aligned, and no more than a few.
func TestFleet_ShowsTheFirstKeysOfEachKind(t *testing.T) {
	t.Parallel()
	hostile := "\x1b[2J\n" + strings.Repeat("鍵", 100)
	p := ops.Process{ID: "host/7/abcd"}
	for i := range 9 {
		key := "order:" + string(rune('0'+i))
		if i == 1 {
			key = hostile
		}
		p.Snapshot.Conflicts = append(p.Snapshot.Conflicts, ops.HotKey{Key: key, Weight: 100 / float64(1+300*i)})
		p.Local.Leases = append(p.Local.Leases, core.LocalLease{Key: key, Held: time.Duration(90-i) * time.Second, Contended: i == 0})
		p.Local.Waits = append(p.Local.Waits, core.LocalWait{Key: key, Name: "pay", Waited: time.Duration(9-i) * time.Second})
	}
	p.Snapshot.Waits = []ops.HotKey{{Key: "order:0", Weight: 2.5}}
	f := &fleetState{Fleet: ops.Fleet{Processes: []ops.Process{p}}, queues: []queueState{{QueueWorkers: ops.QueueWorkers{Queue: "ship"}, err: errors.New("another Redis")}}}
	var out bytes.Buffer
	(&tool{out: &out}).printFleet(f)
	assert.Equal(t, printable(out.String()), out.String())
	tables := strings.Split(strings.ReplaceAll(out.String(), quote(hostile), "KEY"), "\n\n")
	require.Len(t, tables, 5)
	assert.Contains(t, tables[1], "not known here")
	assert.Equal(t, []string{
		"CONFLICTS  WAITED  HOT KEY\n      100    2.5s  order:0\n       <1       -  KEY\n       <1       -  order:2\n       <1       -  order:3\n       <1       -  order:4",
		" HELD  FOR  PROCESS  OLDEST LEASE\n1m30s  -    host:7   order:0  contended\n1m29s  -    host:7   KEY\n1m28s  -    host:7   order:2\n1m27s  -    host:7   order:3\n1m26s  -    host:7   order:4",
		"WAITED  FOR  PROCESS  LONGEST WAIT\n  9.0s  pay  host:7   order:0\n  8.0s  pay  host:7   KEY\n  7.0s  pay  host:7   order:2\n  6.0s  pay  host:7   order:3\n  5.0s  pay  host:7   order:4\n",
	}, tables[2:])
	j := fleetOf(f)
	assert.Len(t, j.Conflicts, 9)
	assert.Equal(t, waitJSON{keyJSON: keyJSON{Key: "order:8"}, Process: p.ID, Name: "pay", Waited: 1}, j.Longest[8])
}
