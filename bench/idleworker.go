package main

import (
	"fmt"
	"sync"
	"text/tabwriter"
	"time"
)

// idleWorker is what it costs Redis when a worker has nothing to do. Each has a
// redis-server of its own, so that they can all be watched at once and for long.
func idleWorker(b *bench) error {
	const title = "queue, one idle worker"
	names := []string{"asynq", "asynq-100ms", "perkey"}
	servers := make([]*server, len(names))
	for i, name := range names {
		var err error
		if servers[i], err = openServer(b.ctx, "", b.nursery.start); err != nil {
			return err
		}
		defer servers[i].close() //nolint:revive // they all run until the end
		q, err := enterQueue(name).open(target{addr: servers[i].addr, lease: claimLease}, "bench-idle")
		if err != nil {
			return err
		}
		defer func() { _ = q.Close() }() //nolint:revive // as above
		stop, err := q.Work(func(int) {})
		if err != nil {
			return err
		}
		defer func() { _ = stop() }() //nolint:revive // as above
	}
	if err := pause(b.ctx, 2*time.Second); err != nil { // connections, scripts
		return err
	}
	watched := b.pick(10*time.Second, 2200*time.Millisecond)
	seen := make([][]traffic, len(names))
	for range rounds {
		var wg sync.WaitGroup
		errs := make([]error, len(names))
		for i, s := range servers {
			wg.Go(func() {
				var t traffic
				t, errs[i] = s.traffic(watched)
				seen[i] = append(seen[i], t)
			})
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
		}
	}
	_, _ = fmt.Fprintf(b.out.w, "\n%s\n", title)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tcommands sent/s\tscripts among them/s\tcommands in scripts/s\t\n")
	for i, name := range names {
		m := medianTraffic(seen[i])
		_, _ = fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\n", name, m.sent, m.scripts, m.inScripts)
		if name == "perkey" {
			b.out.bar(bar{
				what: title + ", commands/s", got: m.sent + m.inScripts, want: 2,
				figure: fmt.Sprintf("%.1f/s sent, %.1f/s in scripts", m.sent, m.inScripts),
			})
		}
	}
	return t.Flush()
}

func medianTraffic(seen []traffic) traffic {
	of := func(f func(traffic) float64) float64 {
		values := make([]float64, len(seen))
		for i, t := range seen {
			values[i] = f(t)
		}
		return medianOf(values)
	}
	return traffic{
		sent:      of(func(t traffic) float64 { return t.sent }),
		scripts:   of(func(t traffic) float64 { return t.scripts }),
		inScripts: of(func(t traffic) float64 { return t.inScripts }),
	}
}
