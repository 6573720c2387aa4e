package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// latePace is the time between two messages, and lateMost the longest delay.
const (
	latePace = 2 * time.Millisecond
	lateMost = 2 * time.Second
)

// lateness is how long after their time messages start that have random delays.
func lateness(b *bench) error {
	d := b.pick(10*time.Second, time.Second)
	names := []string{"asynq", "asynq-100ms", "perkey"}
	if b.quick {
		names = names[1:] // asynq's delays are up to 6 s
	}
	all, err := b.openQueues(names...)
	defer all.leave()
	if err != nil {
		return err
	}
	late := make([]delays, len(all))
	err = inTurns(len(all), func(_, i int) error {
		took, err := lateStarts(b.ctx, all[i], int(d/latePace))
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		late[i].add(took)
		return all[i].clear()
	})
	if err != nil {
		return err
	}
	title := fmt.Sprintf("queue, start after due, %d messages/s at delays up to %v", time.Second/latePace, lateMost)
	_, _ = fmt.Fprintf(b.out.w, "\n%s, for %v\n", title, d)
	t := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "\tp50\tp99\tmax\tearly\tthe earliest by\t\n")
	for i, l := range late {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d of %d\t%s\t\n", all[i].name, brief(l.result.median(p50)), brief(l.result.median(p99)),
			brief(float64(l.most)), l.early, l.total, brief(-float64(l.least)))
		if all[i].name == "perkey" {
			b.out.bar(bar{what: title + ", p99 in ms", got: l.result.median(p99) / 1e6, want: 10})
			b.out.bar(bar{what: title + ", started early", got: float64(l.early), want: 0})
		}
	}
	return t.Flush()
}

// delays are times from when something should have happened until it did.
type delays struct {
	result      result
	least, most time.Duration
	early       int
	total       int
}

func (l *delays) add(took []time.Duration) {
	slices.Sort(took)
	n := len(took)
	l.result.rounds = append(l.result.rounds, figures{p50: took[n/2], p99: took[n*99/100]})
	l.most, l.least = max(l.most, took[n-1]), min(l.least, took[0])
	l.total += n
	for _, d := range took {
		if d < 0 {
			l.early++
		}
	}
}

// lateStarts enqueues n messages at a steady pace while a worker is idle but for
// them. A message is due its delay after Enqueue is called: the time until Redis
// has it counts as late.
func lateStarts(ctx context.Context, q queue, n int) ([]time.Duration, error) {
	due, took := make([]time.Time, n), make([]time.Duration, n)
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	stop, err := q.Work(func(number int) {
		took[number] = time.Since(due[number])
		if left.Add(-1) == 0 {
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	err = enqueueAtPace(ctx, q, due)
	timeout := time.NewTimer(lateMost + 20*time.Second)
	defer timeout.Stop()
	if err == nil {
		select {
		case <-done:
		case <-timeout.C:
			err = fmt.Errorf("%d of %d messages are left", left.Load(), n)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if stopped := stop(); err == nil {
		err = stopped
	}
	return took, err
}

func enqueueAtPace(ctx context.Context, q queue, due []time.Time) error {
	start := time.Now()
	for i := range due {
		time.Sleep(time.Until(start.Add(time.Duration(i) * latePace)))
		delay := time.Duration(rand.N(lateMost.Milliseconds())+1) * time.Millisecond
		due[i] = time.Now().Add(delay)
		if err := q.Enqueue(ctx, message{number: i, delay: delay}); err != nil {
			return err
		}
	}
	return nil
}
