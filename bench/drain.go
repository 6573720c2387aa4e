package main

import (
	"fmt"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// drain is one worker that finds a queue full of messages that are due, and
// whose 16 handlers do nothing.
func drain(b *bench) error {
	n := b.scale(50_000, 5000)
	title := fmt.Sprintf("queue, %d due messages", n)
	results, err := b.drain(title, n, drained{name: "raw"}, drained{name: "asynq"}, drained{name: "asynq-100ms"}, drained{name: "perkey"})
	if err != nil {
		return err
	}
	b.out.bar(rateBar(title+", messages/s × asynq", find(results, "perkey"), find(results, "asynq"), 4))
	return nil
}

// drainKeys is the same with messages that each run under the lock of their key,
// and in its order, beside a queue that has neither.
func drainKeys(b *bench) error {
	n := b.scale(50_000, 5000)
	title := fmt.Sprintf("queue, %d due messages, perkey's of %d keys, locked and in order", n, lines)
	results, err := b.drain(title, n, drained{name: "asynq"}, drained{name: "perkey", keyed: true})
	if err != nil {
		return err
	}
	b.out.bar(rateBar(title+", messages/s × asynq", find(results, "perkey"), find(results, "asynq"), 2))
	return nil
}

// rateBar is on our rate, in times of a peer's.
func rateBar(what string, perkey, peer result, want float64) bar {
	return bar{
		what: what, got: perkey.ratio(peer, perSecond), want: want, atLeast: true,
		figure: fmt.Sprintf("%.0f/s, %s %.0f/s", perkey.median(perSecond), peer.name, peer.median(perSecond)),
	}
}

// drained is a queue that is filled and emptied in turns with others.
type drained struct {
	name   string
	keyed  bool
	queue  *openQueue
	rounds []figures
	calls  calls
	cpu    []float64 // of the client, in µs per message
	redis  []float64 // of Redis
	total  int
	remark string
}

func (b *bench) drain(title string, n int, all ...drained) ([]result, error) {
	for i := range all {
		d := &all[i]
		q, err := b.openQueue(d.name)
		if err != nil {
			return nil, err
		}
		defer q.leave() //nolint:revive // they stay open until the end
		d.queue, d.calls = q, calls{}
	}
	err := inTurns(len(all), func(_, i int) error {
		if err := all[i].run(b, n); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(b.out.w, "\n%s\n", title)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tmessages/s\t×asynq\tclient CPU\tRedis CPU\tscripts each\tcommands each\t\n")
	results := make([]result, len(all))
	for i, d := range all {
		results[i] = result{name: d.name, rounds: d.rounds, calls: d.calls.per(max(1, d.total))}
	}
	for i, d := range all {
		r := results[i]
		_, _ = fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.1fµs\t%.1fµs\t%.2f\t%.2f\t  %s\n", d.name, r.median(perSecond),
			r.ratio(find(results, "asynq"), perSecond), medianOf(d.cpu), medianOf(d.redis), r.calls.scripts(), r.calls.all(), d.remark)
	}
	return results, t.Flush()
}

// drainLimit is for queues that hang.
const drainLimit = 90 * time.Second

func (d *drained) run(b *bench, n int) error {
	if d.remark != "" {
		return nil
	}
	defer func() { _ = d.queue.clear() }()
	if err := fill(b.ctx, d.queue, n, d.keyed); err != nil {
		return err
	}
	before, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	redisBefore, err := b.server.cpu(b.ctx)
	if err != nil {
		return err
	}
	w := newWatch(n)
	cpu, start := cpuTime(), time.Now()
	stop, err := d.queue.Work(w.handle)
	if err != nil {
		return err
	}
	select {
	case <-w.done:
	case <-time.After(drainLimit):
		d.remark = fmt.Sprintf("hangs: %d are left after %v", w.left.Load(), drainLimit)
	case <-b.ctx.Done():
	}
	elapsed := time.Since(start)
	cpu = cpuTime() - cpu
	after, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	redisAfter, err := b.server.cpu(b.ctx)
	if err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	if d.keyed && w.broken.Load() > 0 {
		return fmt.Errorf("%d messages out of order, or beside another of their key", w.broken.Load())
	}
	if d.remark != "" || b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	d.calls.add(before, after)
	d.total += n
	d.rounds = append(d.rounds, figures{perSecond: float64(n) / elapsed.Seconds()})
	d.cpu = append(d.cpu, float64(cpu.Microseconds())/float64(n))
	d.redis = append(d.redis, float64((redisAfter-redisBefore).Microseconds())/float64(n))
	return nil
}

// watch sees every message once, and whether those of a line overlap or come
// out of order.
type watch struct {
	left   atomic.Int64
	done   chan struct{} // closed: none is left
	seen   []atomic.Bool
	lines  [lines]lane
	broken atomic.Int64
}

type lane struct{ inside, last atomic.Int64 }

func newWatch(n int) *watch {
	w := &watch{done: make(chan struct{}), seen: make([]atomic.Bool, n)}
	w.left.Store(int64(n))
	return w
}

func (w *watch) handle(number int) {
	l := &w.lines[lineOf(number)]
	alone := l.inside.Add(1) == 1
	inTurn := l.last.Swap(int64(number)) <= int64(number) // again is allowed, back is not
	l.inside.Add(-1)
	if !alone || !inTurn {
		w.broken.Add(1)
	}
	if !w.seen[number].Swap(true) && w.left.Add(-1) == 0 {
		close(w.done)
	}
}
