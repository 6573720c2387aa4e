package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What docs/operations.md says of first leases comes from this: which share of the requests that are under way when
// Redis goes away lose their lease. PERKEY_FIGURES=1 measures the whole table; without it one row is checked.
func TestFirstLease_WhatABlipEnds(t *testing.T) {
	t.Parallel()
	firsts := []time.Duration{core.DefaultFirstLease}
	blips := []time.Duration{3 * time.Second}
	figures := os.Getenv("PERKEY_FIGURES") != ""
	if figures {
		firsts = []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second, core.DefaultTTL}
		blips = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second}
	}
	lost := map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, kind := range []string{"stopped", "cut off"} {
		for _, blip := range blips {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr)
			away, back := server.Pause, server.Resume
			if kind == "cut off" {
				away, back = func() { proxy.Refuse(true) }, func() { proxy.Refuse(false) }
			}
			var calm, gone sync.WaitGroup // each has what is under way; Redis is away
			calm.Add(len(firsts))
			gone.Add(1)
			for _, first := range firsts {
				l := lockerOn(t, redistest.Client(t, &redis.Options{Addr: proxy.Addr}), fmt.Sprint("p", first), core.WithFirstLease(first))
				wg.Go(func() {
					short, long := blipLosses(t, l, &calm, &gone)
					mu.Lock()
					defer mu.Unlock()
					lost[fmt.Sprint(kind, blip, first)] = fmt.Sprintf("%3.0f %% %3.0f %%", 100*short, 100*long)
					if !figures {
						assert.Zero(t, short, "%s: of 200 ms", kind)
						assert.Zero(t, long, "%s: of 6 s", kind)
					}
				})
			}
			wg.Go(func() {
				calm.Wait()
				away()
				gone.Done()
				time.Sleep(blip)
				back()
			})
		}
	}
	wg.Wait()
	t.Log(blipTable(lost, firsts, blips))
}

// blipTable is the table of what was lost, by the kind of outage, its length, and the first lease.
func blipTable(lost map[string]string, firsts, blips []time.Duration) string {
	var b strings.Builder
	for _, kind := range []string{"stopped", "cut off"} {
		fmt.Fprintf(&b, "\nRedis is %s: lost of 200 ms, of 6 s\nfirst lease", kind)
		for _, blip := range blips {
			fmt.Fprintf(&b, " | %11s", blip)
		}
		for _, first := range firsts {
			fmt.Fprintf(&b, "\n%11s", first)
			for _, blip := range blips {
				fmt.Fprintf(&b, " | %s", lost[fmt.Sprint(kind, blip, first)])
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// blipLosses has requests of 200 ms and of 6 s run one after the other on keys of their own, and
// tells which share of those that were under way when Redis went away lost their lease.
func blipLosses(t *testing.T, l *core.Locker, calm, gone *sync.WaitGroup) (short, long float64) {
	t.Helper()
	const each = 20
	type request struct {
		began, ended time.Time
		lost         bool
	}
	var over atomic.Bool
	var under [2]atomic.Int32
	var mu sync.Mutex
	var requests [2][]request
	var wg sync.WaitGroup
	for kind, work := range []time.Duration{200 * time.Millisecond, 6 * time.Second} {
		for i := range each {
			wg.Go(func() {
				time.Sleep(work * time.Duration(i) / each)
				for !over.Load() {
					r := request{}
					err := l.Do(t.Context(), fmt.Sprint(kind, i), func(ctx context.Context) error {
						r.began = time.Now()
						under[kind].Add(1)
						defer under[kind].Add(-1)
						select {
						case <-ctx.Done():
						case <-time.After(work):
						}
						r.ended = time.Now()
						return context.Cause(ctx)
					})
					if r.began.IsZero() { // it did not get its key
						time.Sleep(10 * time.Millisecond)
						continue
					}
					r.lost = errors.Is(err, core.ErrLeaseLost)
					mu.Lock()
					requests[kind] = append(requests[kind], r)
					mu.Unlock()
				}
			})
		}
	}
	time.Sleep(8 * time.Second)
	before := time.Now()
	for under[0].Load() == 0 || under[1].Load() == 0 { // whoever is seen here is under way between before and away
		time.Sleep(time.Millisecond)
	}
	calm.Done()
	gone.Wait()
	away := time.Now()
	over.Store(true)
	wg.Wait()
	var shares [2]float64
	for kind := range requests {
		met, lost := 0, 0
		for _, r := range requests[kind] {
			if r.began.Before(away) && r.ended.After(before) {
				met++
				if r.lost {
					lost++
				}
			}
		}
		shares[kind] = float64(lost) / float64(met)
	}
	return shares[0], shares[1]
}
