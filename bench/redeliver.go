package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"
)

// redeliver is how long after kill -9 of a worker process its message is given
// to another one, which has been there all along. That is waiting, so all queues
// wait at once.
func redeliver(b *bench) error {
	lease := b.pick(claimLease, 2*time.Second)
	names := []string{"asynq", "perkey"}
	if b.quick {
		names = names[1:] // asynq takes minutes
	}
	var estates []*estate
	defer func() {
		for _, e := range estates {
			e.close()
		}
	}()
	b.board.reset()
	for _, name := range names {
		for i := range rounds {
			e := &estate{name: name}
			estates = append(estates, e)
			if err := e.open(b, fmt.Sprintf("bench-estate-%d", i), lease); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for _, e := range estates {
		// A claim is renewed every now and then: no two are at the same point.
		if err := pause(b.ctx, lease/15); err != nil {
			return err
		}
		e.killed = time.Now()
		if err := e.owner.members[0].cmd.Process.Kill(); err != nil {
			return fmt.Errorf("kill a worker: %w", err)
		}
	}
	took := map[string][]time.Duration{}
	limit := time.After(b.pick(4*time.Minute, 3*lease))
	for _, e := range estates {
		select {
		case at := <-e.started:
			took[e.name] = append(took[e.name], at.Sub(e.killed))
		case <-limit:
			return fmt.Errorf("%s: the message of a killed worker was not run again", e.name)
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	}
	title := fmt.Sprintf("queue, kill -9 of a worker with a claim of %v", lease)
	_, _ = fmt.Fprintf(b.out.w, "\n%s\n", title)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tmedian until it runs again\tthe longest\t\n")
	for _, name := range names {
		all := took[name]
		slices.Sort(all)
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t\n", name, brief(float64(all[len(all)/2])), brief(float64(all[len(all)-1])))
	}
	all := took["perkey"]
	b.out.bar(bar{what: title + ", s until it runs again", got: all[len(all)-1].Seconds(), want: (lease + time.Second).Seconds()})
	return t.Flush()
}

// estate is a queue with one message, which a child process has claimed.
type estate struct {
	name    string
	queue   queue
	owner   *team
	killed  time.Time
	started chan time.Time // again
	stop    func() error
}

func (e *estate) open(b *bench, name string, lease time.Duration) (err error) {
	opener := enterQueue(e.name)
	if e.queue, err = opener.open(target{addr: b.server.addr, lease: lease}, name); err != nil {
		return err
	}
	if err := errors.Join(b.server.clear(b.ctx, e.queue.Keys()), e.queue.Enqueue(b.ctx, message{})); err != nil {
		return err
	}
	held := b.board.held.Load()
	if e.owner, err = b.startTeam(entrant{name: e.name}, role{Queue: name, Lease: lease}, 1); err != nil {
		return err
	}
	if err := until(func() bool { return b.board.held.Load() > held }); err != nil {
		return err
	}
	e.started = make(chan time.Time, 1)
	e.stop, err = e.queue.Work(func(int) {
		select {
		case e.started <- time.Now():
		default:
		}
	})
	return err
}

func (e *estate) close() {
	if e.owner != nil {
		e.owner.dismiss()
	}
	if e.stop != nil {
		_ = e.stop()
	}
	if e.queue != nil {
		_ = e.queue.Close()
	}
}

// occupy works on a queue with a handler that never comes back.
func (c *child) occupy() error {
	q, err := enterQueue(c.role.Entrant).open(target{addr: c.role.Addr, lease: c.role.Lease}, c.role.Queue)
	if err != nil {
		return err
	}
	_, err = q.Work(func(int) {
		c.board.held.Add(1)
		<-context.Background().Done()
	})
	return err
}
