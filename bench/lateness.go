package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// latePace is the time between two messages, and lateMost the longest delay.
const (
	latePace = 2 * time.Millisecond
	lateMost = 2 * time.Second
)

const (
	early    figure = "early" // messages
	earliest figure = "the earliest by"
)

// lateness is how long after their time messages start that have random delays.
func lateness(b *bench) {
	d := scale(b, 10*time.Second, time.Second)
	names := []string{"asynq", "asynq-100ms", "perkey"}
	if b.quick {
		names = names[1:] // asynq's delays are up to 6 s
	}
	var all results
	var open []queue
	for _, name := range names {
		all = append(all, &result{name: name})
		open = append(open, b.openQueue(name, "bench-"+name, claimLease))
	}
	n := int(d / latePace)
	b.inTurns(len(all), func(_, i int) {
		took := lateStarts(b, open[i], n)
		check(b.server.clear(b.ctx, open[i].Keys()))
		s := sample{took: took, ops: n, elapsed: d}
		f := s.figures()
		f[earliest] = -float64(took[0])
		f[early] = float64(slices.IndexFunc(append(took, 0), func(d time.Duration) bool { return d >= 0 }))
		all[i].rounds = append(all[i].rounds, f)
	})
	sum := func(r *result) (sum float64) {
		for _, v := range r.each(early) {
			sum += v
		}
		return sum
	}
	title := fmt.Sprintf("queue, start after due, %d messages/s at delays up to %v", time.Second/latePace, lateMost)
	all.print(fmt.Sprintf("%s, for %v", title, d), col("p50", p50, brief), col("p99", p99, brief),
		column{"max", func(r *result) string { return brief(slices.Max(r.each(most))) }},
		column{"early", func(r *result) string { return fmt.Sprintf("%.0f of %d", sum(r), n*rounds) }},
		column{"the earliest by", func(r *result) string { return brief(max(0, slices.Max(r.each(earliest)))) }})
	perkey := all.find("perkey")
	b.atMost(title+", p99 in ms", perkey.median(p99)/1e6, 10)
	b.atMost(title+", started early", sum(perkey), 0)
}

// lateStarts enqueues n messages at a steady pace while a worker is idle but for
// them, and returns how late each began. A message is due its delay after Enqueue is called: the time until Redis
// has it counts as late.
func lateStarts(b *bench, q queue, n int) []time.Duration {
	due, took := make([]time.Time, n), make([]time.Duration, n)
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	stop := must(q.Work(func(number int) {
		took[number] = time.Since(due[number])
		if left.Add(-1) == 0 {
			close(done)
		}
	}))
	defer func() { check(stop()) }()
	start := time.Now()
	for i := range due {
		time.Sleep(time.Until(start.Add(time.Duration(i) * latePace)))
		delay := time.Duration(rand.N(lateMost.Milliseconds())+1) * time.Millisecond
		due[i] = time.Now().Add(delay)
		check(q.Enqueue(b.ctx, queued{number: i, delay: delay}))
	}
	select {
	case <-done:
	case <-time.After(lateMost + 20*time.Second):
		check(fmt.Errorf("%d of %d messages are left", left.Load(), n))
	case <-b.ctx.Done():
		check(b.ctx.Err())
	}
	return took
}
