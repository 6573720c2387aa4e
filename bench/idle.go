package main

import (
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"
)

// idleHolder is what it costs Redis when a hundred calls wait and nothing
// happens: their key is held, and its holder does nothing. Each contestant has a
// redis-server of its own, so that they can all be watched at once and for long:
// some clients send a PING now and then, and those count.
func idleHolder(b *bench) error {
	const title = "100 waiters in 10 processes, holder idle"
	var all []*idler
	defer func() {
		for _, i := range all {
			i.close()
		}
	}()
	for _, e := range enter("redislock", "rueidislock", "rueidislock-1key", "perkey") {
		i := &idler{entrant: e}
		all = append(all, i)
		i.err = i.start(b)
	}
	watched := b.pick(5*time.Second, 2200*time.Millisecond)
	end := monotonic() + time.Second + rounds*watched // until then calls wait
	for _, i := range all {
		if i.err == nil {
			i.err = i.wait(b, end)
		}
	}
	for range rounds {
		var wg sync.WaitGroup
		for _, i := range all {
			if i.err == nil {
				wg.Go(func() { i.err = i.watch(watched) })
			}
		}
		wg.Wait()
	}
	_, _ = fmt.Fprintf(b.out.w, "\n%s\n", title)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tcommands sent/s\tscripts among them/s\tcommands in scripts/s\t\n")
	for _, i := range all {
		if i.err == nil {
			i.err = i.finish(b)
		}
		sent := i.median(func(t traffic) float64 { return t.sent })
		if i.err != nil {
			_, _ = fmt.Fprintf(t, "%s\t–\t–\t–\t  %v\n", i.name, i.err)
		} else {
			_, _ = fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\n", i.name, sent,
				i.median(func(t traffic) float64 { return t.scripts }), i.median(func(t traffic) float64 { return t.inScripts }))
		}
		if i.kind == ours {
			b.out.bar(bar{what: title + ", commands/s", got: sent, want: 15})
		}
	}
	return errors.Join(t.Flush(), b.ctx.Err())
}

// idler is a contestant whose calls wait in vain.
type idler struct {
	entrant
	server *server
	team   *team
	seen   []traffic
	err    error
}

// start lets the first process of the team take the key.
func (i *idler) start(b *bench) (err error) {
	if i.server, err = openServer(b.ctx, "", b.nursery.start); err != nil {
		return err
	}
	// Not all contestants renew: the lease outlasts the scenario.
	i.team, err = b.startTeam(i.entrant, role{Workers: 10, Addr: i.server.addr, Lease: 2 * time.Minute}, 11)
	return err
}

func (i *idler) wait(b *bench, end time.Duration) error {
	b.board.reset()
	j := job{Do: "hold", Key: "idle", For: end - monotonic() + time.Second}
	if err := i.team.tell(i.team.members[:1], j); err != nil {
		return err
	}
	if err := until(func() bool { return b.board.held.Load() != 0 }); err != nil {
		return err
	}
	j.Do, j.At = "contend", monotonic()
	j.For = end - j.At // the waiters leave before the holder
	return i.team.tell(i.team.members[1:], j)
}

func (i *idler) watch(d time.Duration) error {
	t, err := i.server.traffic(d)
	i.seen = append(i.seen, t)
	return err
}

func (i *idler) finish(b *bench) error {
	answers, err := i.team.collect(b.ctx, i.team.members, 20*time.Second)
	if err != nil {
		return err
	}
	for _, a := range answers {
		for _, n := range a.Counts {
			if n > 0 {
				return errors.New("BROKEN: a waiter got a key that was held")
			}
		}
	}
	return nil
}

func (i *idler) median(f func(traffic) float64) float64 {
	values := make([]float64, len(i.seen))
	for round, t := range i.seen {
		values[round] = f(t)
	}
	return medianOf(values)
}

func (i *idler) close() {
	if i.team != nil {
		i.team.dismiss()
	}
	if i.server != nil {
		i.server.close()
	}
}
