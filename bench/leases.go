package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"
)

// leases is what it costs to keep many keys, which are renewed all the while:
// the client's CPU, its memory, its goroutines, and Redis.
func leases(b *bench) error {
	if err := b.tenThousand(); err != nil {
		return err
	}
	if b.quick {
		_, _ = fmt.Fprintf(b.out.w, "\n100,000 renewed leases: only in a full run\n")
		return nil
	}
	return b.hundredThousand()
}

// keeper is a team of one process that holds leases.
type keeper struct {
	*team
	few, all   answer        // after a tenth of the leases, and after all
	heap       float64       // bytes per lease
	cpu        []float64     // of the client, in seconds per minute
	lastCPU    time.Duration // at the last look
	lastLooked time.Time
}

// hold acquires n leases.
func (k *keeper) hold(b *bench, n int) error {
	// So that there is room: see usage.
	if _, err := k.team.all(b.ctx, job{Do: "usage", Count: n}); err != nil {
		return err
	}
	// And connections, whose buffers would count as the leases'.
	for _, do := range []string{"hold", "drop"} {
		if _, err := k.team.all(b.ctx, job{Do: do, Count: n / 10, For: 40 * time.Second}); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		count int
		after *answer
	}{{n / 10, &k.few}, {n, &k.all}} {
		if _, err := k.team.all(b.ctx, job{Do: "hold", Count: step.count, For: 40 * time.Second}); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // what ends after an acquire has ended
		answers, err := k.team.all(b.ctx, job{Do: "usage", Count: n})
		if err != nil {
			return err
		}
		*step.after = answers[0]
	}
	k.heap = (float64(k.all.Heap) - float64(k.few.Heap)) / float64(n-n/10)
	return nil
}

// look takes the CPU time since the last look, if there was one.
func (k *keeper) look(b *bench) error {
	answers, err := k.team.all(b.ctx, job{Do: "usage"})
	if err != nil {
		return err
	}
	now := time.Now()
	if !k.lastLooked.IsZero() {
		k.cpu = append(k.cpu, (answers[0].CPU-k.lastCPU).Seconds()/now.Sub(k.lastLooked).Minutes())
	}
	k.lastCPU, k.lastLooked = answers[0].CPU, now
	return nil
}

// tenThousand lets all contestants keep their leases side by side. A quick run
// has a tenth of the leases, a tenth as long, which is as many renewals a second.
func (b *bench) tenThousand() error {
	n := b.scale(10_000, 1000)
	lease := b.pick(30*time.Second, 3*time.Second)
	title := "10,000 renewed leases of 30 s"
	if b.quick {
		title += ", here 1,000 of 3 s"
	}
	var all teams
	defer func() { all.dismiss() }()
	all, err := b.startTeams(enter("raw+renewal", "rueidislock-1key", "perkey"), role{Workers: 1, Lease: lease}, 1)
	if err != nil {
		return err
	}
	keepers := make([]*keeper, len(all))
	for i, c := range all {
		keepers[i] = &keeper{team: c}
		_ = keepers[i].hold(b, n) // its row tells
	}
	time.Sleep(lease) // the first renewals are over, and spread as they will be
	for round := range rounds + 1 {
		if round > 0 {
			// A window holds whole periods of every contestant.
			if err := pause(b.ctx, lease); err != nil {
				return err
			}
		}
		for _, k := range keepers {
			_ = k.look(b)
		}
	}
	raw := keepers[0]
	_, _ = fmt.Fprintf(b.out.w, "\n%s\n", title)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tclient CPU s/min\t×raw+renewal\theap/lease\tgoroutines\tat a tenth\t\n")
	for _, k := range keepers {
		if k.down != nil {
			_, _ = fmt.Fprintf(t, "%s\t–\t–\t–\t–\t–\t  %v\n", k.name, k.down)
			continue
		}
		cpu := medianOf(k.cpu)
		_, _ = fmt.Fprintf(t, "%s\t%.3f\t%.2f\t%.0f B\t%d\t%d\t\n", k.name, cpu, cpu/medianOf(raw.cpu), k.heap, k.all.Goroutines, k.few.Goroutines)
		if k.name == "perkey" {
			b.out.bar(bar{
				what: "10,000 leases, client CPU × raw+renewal", got: cpu / medianOf(raw.cpu), want: 2,
				figure: fmt.Sprintf("%.3f s/min, raw+renewal %.3f s/min", cpu, medianOf(raw.cpu)),
			})
			b.out.bar(bar{
				what: "10,000 leases, goroutines more than for a tenth",
				got:  float64(k.all.Goroutines - k.few.Goroutines), want: holders,
			})
			b.out.bar(bar{what: "10,000 leases, bytes of heap each", got: k.heap, want: 400})
		}
	}
	return t.Flush()
}

// hundredThousand measures what Redis does, so that each goes alone.
func (b *bench) hundredThousand() error {
	const (
		n     = 100_000
		lease = 30 * time.Second
	)
	_, _ = fmt.Fprintf(b.out.w, "\n100,000 renewed leases of 30 s\n")
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tof a Redis core\tclient CPU s/min\theap/lease\tgoroutines\t\n")
	for _, e := range enter("raw+renewal", "perkey") {
		k, share, err := b.keepAlone(e, n, lease)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		_, _ = fmt.Fprintf(t, "%s\t%.1f %%\t%.2f\t%.0f B\t%d\t\n", e.name, 100*share, k.cpu[0], k.heap, k.all.Goroutines)
		if e.kind == ours {
			b.out.bar(bar{what: "100,000 leases, % of a Redis core", got: 100 * share, want: 7})
			b.out.bar(bar{what: "100,000 leases, bytes of heap each", got: k.heap, want: 400})
		}
	}
	return t.Flush()
}

func (b *bench) keepAlone(e entrant, n int, lease time.Duration) (*keeper, float64, error) {
	c, err := b.startTeam(e, role{Workers: 1, Lease: lease}, 1)
	defer c.dismiss()
	if err != nil {
		return nil, 0, err
	}
	k := &keeper{team: c}
	if err := k.hold(b, n); err != nil {
		return nil, 0, err
	}
	if err := errors.Join(pause(b.ctx, lease/2), k.look(b)); err != nil {
		return nil, 0, err
	}
	before, err := b.server.cpu(b.ctx)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	if err := pause(b.ctx, 2*lease); err != nil {
		return nil, 0, err
	}
	after, err := b.server.cpu(b.ctx)
	if err != nil {
		return nil, 0, err
	}
	share := (after - before).Seconds() / time.Since(start).Seconds()
	if err := k.look(b); err != nil {
		return nil, 0, err
	}
	_, err = c.all(b.ctx, job{Do: "drop", For: 20 * time.Second})
	return k, share, err
}

// holders is how many goroutines of a child acquire leases at once.
const holders = 16

// hold acquires so many keys in all and keeps them; without a number it acquires
// one key, and keeps it for the job's time.
func (c *child) hold(j job) error {
	ctx := context.Background()
	if j.Count == 0 {
		h, err := c.contestant.Acquire(ctx, j.Key)
		if err != nil {
			return err
		}
		c.board.held.Store(1)
		time.Sleep(j.For)
		return h.Release(ctx)
	}
	first := len(c.leases)
	c.leases = c.leases[:j.Count] // there is room: see usage
	return c.each(first, func(i int) (err error) {
		c.leases[i], err = c.contestant.Acquire(ctx, c.keys[i])
		return err
	})
}

// drop releases what hold keeps.
func (c *child) drop() error {
	err := c.each(0, func(i int) error { return c.leases[i].Release(context.Background()) })
	clear(c.leases)
	c.leases = c.leases[:0]
	return err
}

// each does something with every lease from the first on, a few at a time.
func (c *child) each(first int, do func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, holders)
	for w := range holders {
		wg.Go(func() {
			for i := first + w; i < len(c.leases) && errs[w] == nil; i += holders {
				errs[w] = do(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
