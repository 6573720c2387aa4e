package asynqlock

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

const (
	// pickUp is for how long a task that was woken is expected: no other is woken in its place.
	pickUp = time.Second
	// A task that was just refused is on its way back to asynq's retries, and cannot be woken for some
	// milliseconds. The first wait is this, and each doubles.
	firstPause = time.Millisecond
	// inWorker bounds the time that this takes of a worker, after its task has released the key. It is also for how
	// long the task that has waited for longest is waited for, before another is woken in its place.
	inWorker = 50 * time.Millisecond
	// inBackground bounds it elsewhere.
	inBackground = 10 * time.Second
)

// wake has the task run that has waited for longest for a key that is free: asynq fetches it as soon
// as a server looks. It waits until then for one that is on its way to asynq's retries. It reports whether one was
// woken, or else whether some could not be yet.
func (s *server) wake(ctx context.Context, list waitlist, expected int, until time.Time) (woken, early bool) {
	gone, passed, skip := "", "", 0
	for ctx.Err() == nil {
		c, err := list.wake(ctx, s.rdb, expected, gone, passed, skip)
		if err != nil || c.task == "" {
			return false, err == nil && !c.expected && skip > 0
		}
		gone, passed = "", ""
		switch s.run(ctx, c.task, until) {
		case isPending:
			return true, false
		case isActive:
			passed = c.task
			skip++
		default:
			gone = c.task
		}
	}
	return false, false
}

// freed wakes a task for a key that may be free. A call that was refused, and is not in the list yet or could not be
// woken yet, may be the one: it is waited for. If nothing comes of that, the task comes back by itself.
func (s *server) freed(ctx context.Context, list waitlist, expected int) {
	began := time.Now()
	for pause := firstPause; ; pause *= 2 {
		asking := s.asking(list).Load() > 0
		woken, early := s.wake(ctx, list, expected, began.Add(inWorker))
		if woken || !asking && !early || time.Since(began)+pause > inBackground || !sleep(ctx, pause) {
			return
		}
	}
}

// wakeAfter wakes a task when the lease is over of which one was told. No release tells of that if the holder died, or
// gave the key back while a MinHold keeps it. If the lease was renewed, the task is refused, and told anew.
func (s *server) wakeAfter(remaining time.Duration, list waitlist, expected int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timer, ok := s.ends[list]; ok {
		timer.Reset(remaining)
		return
	}
	s.ends[list] = time.AfterFunc(remaining, func() {
		s.mu.Lock()
		delete(s.ends, list)
		s.mu.Unlock()
		s.freed(context.Background(), list, expected)
	})
}

// asks counts a task that asks for the key of a list, until answered or p.asked is called first: it has the key,
// or is in the list.
func (s *server) asks(p *processing) (answered func()) {
	n := s.asking(p.list)
	n.Add(1)
	p.asked = sync.OnceFunc(func() { n.Add(-1) })
	return p.asked
}

// asking is how many ask for the key of a list, or for another of the same hash.
func (s *server) asking(list waitlist) *atomic.Int64 {
	return &s.askingBy[maphash.String(s.seed, string(list))%uint64(len(s.askingBy))]
}

// run makes a task pending, as soon as it is not active any more.
func (s *server) run(ctx context.Context, task string, until time.Time) (state int64) {
	queue, id, ok := parseTaskName(task)
	if !ok {
		return isGone
	}
	for pause := firstPause; ; pause *= 2 {
		if state = s.runTask(queue, id); state != isActive || time.Now().Add(pause).After(until) || !sleep(ctx, pause) {
			return state
		}
	}
}

// What lua/run.lua answers.
const (
	isPending     = int64(1)
	isGone        = int64(0)
	isActive      = int64(-1)
	isPendingLong = int64(-2)
)

// runTask makes a task pending, if it was put aside, and returns what it is then.
func (s *server) runTask(queue, id string) (state int64) {
	var c runClient
	c.UniversalClient, c.scripts = s.rdb, &s.runScripts
	err := asynq.NewInspectorFromRedisClient(&c).RunTask(queue, id)
	switch {
	case c.reply == nil:
		return isPending // Redis failed: others will
	case err == nil || c.state() == isPendingLong:
		return isPending
	}
	return c.state()
}
