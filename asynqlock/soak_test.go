//go:build soak

package asynqlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// See docs/asynq.md: go test -tags=soak -run=TestSoak_Hot -v ./asynqlock.
func TestSoak_HotKeys(t *testing.T) {
	f := fleet{servers: 4, workers: 10, keys: 10, tasks: 10_000, work: 10 * time.Millisecond, cfg: documented}
	woken := f.drain(t)
	t.Log("woken by releases:", woken)
	waited := shortWait(f).drain(t)
	t.Log("a wait of 100 ms:", waited)
	require.LessOrEqual(t, woken.took.Seconds(), 1.3*waited.took.Seconds())
	length := time.Duration(f.tasks/f.keys) * f.work
	require.LessOrEqual(t, woken.waits[len(woken.waits)*99/100], 2*length, "twice what the tasks of a key take one after the other")
}

// The same with -run=TestSoak_Many: keys that nobody fights for cost hardly anything.
func TestSoak_ManyKeys(t *testing.T) {
	f := fleet{servers: 4, workers: 10, keys: 10_000, tasks: 10_000, work: 10 * time.Millisecond, cfg: documented}
	var with, without time.Duration
	for range 3 {
		d := f.drain(t)
		t.Log("with perkey:", d)
		with += d.took
		bare := f
		bare.without = true
		d = bare.drain(t)
		t.Log("without:", d)
		without += d.took
	}
	require.LessOrEqual(t, with.Seconds(), 1.1*without.Seconds())
}
