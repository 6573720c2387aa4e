package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"
)

// placement says which CPUs the program and its redis-server run on.
type placement struct {
	name   string
	client []int // nil: wherever the kernel puts them
	server []int
	limit  float64 // of perkey's p50, times raw's; 0: no bar is on it
}

// placements for what one goroutine does. Together on one core every instruction
// of the client counts, since Redis waits for it; a core each is as over a network.
//
// Left alone the kernel keeps the two on one core, which is the fastest, as long
// as the client uses one thread; who wakes a second one, by handing work from
// goroutine to goroutine, is moved apart from Redis and takes twice as long. That depends on
// what else the machine does, so it is shown, and no bar is on it.
func (b *bench) placements() []placement {
	cpus := allowedCPUs()
	if b.server.cmd == nil || len(cpus) < 2 {
		return []placement{{name: "not pinned", limit: 1.25}}
	}
	pinned := []placement{
		{name: "client and server on one core", client: cpus[:1], server: cpus[:1], limit: 1.25},
		{name: "client and server on a core each", client: cpus[:1], server: cpus[1:2], limit: 1.1},
	}
	if b.quick {
		return pinned
	}
	return append(pinned, placement{name: "not pinned"})
}

// roundTrips prints how long a round trip takes under each placement, which the figures hold for.
func (b *bench) roundTrips() error {
	for _, place := range b.placements() {
		took := make([]time.Duration, 2000)
		err := b.placed(place, func() error {
			for i := range took {
				began := time.Now()
				if err := b.server.admin.Ping(b.ctx).Err(); err != nil {
					return err
				}
				took[i] = time.Since(began)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("measure round trips: %w", err)
		}
		slices.Sort(took)
		_, _ = fmt.Fprintf(b.out.w, "a round trip of PING, %s: %s\n", place.name, brief(float64(took[len(took)/2])))
	}
	return nil
}

// placed runs f under a placement.
func (b *bench) placed(p placement, f func() error) error {
	if p.client == nil {
		return f()
	}
	all := allowedCPUs()
	if err := pin(b.server.cmd.Process.Pid, p.client, p.server); err != nil {
		return err
	}
	procs := runtime.GOMAXPROCS(len(p.client)) // as the runtime chooses in such a place
	defer func() {
		runtime.GOMAXPROCS(procs)
		_ = pin(b.server.cmd.Process.Pid, all, all)
	}()
	return f()
}
