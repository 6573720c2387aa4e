package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// Redrive puts a dead letter back into the queue, under its id, due at once: at the end of its key's
// FIFO, or at its old place if it halts the key ([WithHaltOnDeath]). Its attempts and conflicts start
// at 0 again; its losses stay, and its cause until it has another. It may be started for maxAge from
// now; zero is the queue's max age.
//
// For a message that is not a dead letter the error is [ErrNotDead], so to redrive twice is
// harmless; for one that is not known it is [ErrNotFound]. The bounds of the queue apply:
// [ErrKeyFull], [ErrPrincipalFull], [ErrQueueFull]. If the record of the letter is too damaged to
// run, the error is [ErrDamaged]. After an error the letter is where it was; after one that wraps
// core.ErrUnavailable, or ctx's own, that is not known. It takes two round trips.
func (q *Queue) Redrive(ctx context.Context, id string, maxAge time.Duration) error {
	maxAge, err := q.redriveAge(maxAge)
	if err != nil {
		return err
	}
	s, p, err := q.find(ctx, "redrive", id)
	if err != nil {
		return err
	}
	if s.State != store.Dead || s.Forgotten {
		return q.notDead("redrive", id, s)
	}
	words, err := p.Redrive(ctx, maxAge, store.Letter{ID: id})
	if err != nil || words[0] == store.RedriveDone {
		return err
	}
	return q.redriveRefused(id, words[0])
}

// redriveRefused is why a dead letter was left where it was; nil if it was none.
func (q *Queue) redriveRefused(id string, word store.Redriven) error {
	refused := func(why error, what string, args ...any) error {
		return fmt.Errorf("delayqueue: redrive of message %q in queue %q: %w: %s", id, q.name, why, fmt.Sprintf(what, args...))
	}
	if word == store.RedriveDamaged {
		return refused(ErrDamaged, "enqueue the work again, and purge it")
	} else if full := fullErrors[word.Full()]; full != nil {
		return refused(full, "%s", fullBecause(&q.settings, full))
	}
	return nil
}

func (q *Queue) notDead(op, id string, s store.Found) error {
	if s.Forgotten {
		return fmt.Errorf("delayqueue: %s of message %q in queue %q: %w: there was no room for the dead letter, see WithMaxBytes", op, id, q.name, ErrNotFound)
	}
	return fmt.Errorf("delayqueue: %s of message %q in queue %q: %w: it is %s", op, id, q.name, ErrNotDead, states[s.State])
}

// redriveAge is the max age of what is redriven.
func (q *Queue) redriveAge(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return q.maxAge, nil
	}
	if d < time.Millisecond || d > maxDuration {
		return 0, invalidArgument("redrive", "max age %s: want %s to %s, or 0 for the queue's", d, time.Millisecond, maxDuration)
	}
	return d, nil
}

// RedriveOptions are the options of [Queue.RedriveAll]. The zero value redrives all, as fast as
// Redis can.
type RedriveOptions struct {
	// MaxAge is for how long each may be started, from when it was redriven. Zero: the
	// queue's max age.
	MaxAge time.Duration
	// Limit is how many to redrive at most. Zero: all.
	Limit int
	// PerSecond is how many to redrive in a second, so that they do not all reach their
	// handlers at once. Zero: as many as Redis can.
	PerSecond float64
}

func (o RedriveOptions) check() error {
	switch {
	case o.Limit < 0:
		return invalidArgument("redrive", "limit %d: want 0, for all, or more", o.Limit)
	case o.PerSecond < 0 || math.IsNaN(o.PerSecond) || math.IsInf(o.PerSecond, 0):
		return invalidArgument("redrive", "%g per second: want 0, for as many as redis takes, or more", o.PerSecond)
	}
	return nil
}

// RedriveAll puts dead letters back into the queue, as [Queue.Redrive] does: those that the filter
// selects and that are dead when it is called. In each partition the letters that died first are
// redriven first. It returns how many it put back, also with an error.
//
// Letters that are refused stay dead. A full key or a damaged letter does not keep the others back;
// the error is that of the first that was refused. [ErrQueueFull] ends the call. So does the end of
// ctx, and an error of Redis: some letters may then be redriven without being counted. To call it
// again is harmless.
//
// It takes three round trips for 100 letters, more of them at a low rate, and reads all dead
// letters of these times and partitions, unless Limit ends it before.
func (q *Queue) RedriveAll(ctx context.Context, f Filter, o RedriveOptions) (n int, err error) {
	maxAge, err := q.redriveAge(o.MaxAge)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return 0, err
	}
	most := scanBatch
	if o.PerSecond > 0 {
		most = int(min(max(1, o.PerSecond/10), scanBatch)) // ten times a second
	}
	began := time.Now()
	var refused refusals
	match := func(e Entry) bool { return e.State == StateDead && f.matches(e) }
	err = q.scan(ctx, "redrive", StateDead, f, match, func(p *store.Partition, batch []Entry) error {
		for len(batch) > 0 {
			size := min(len(batch), most)
			if o.Limit > 0 {
				size = min(size, o.Limit-n)
			}
			if o.PerSecond > 0 && n > 0 {
				if err := sleepUntil(ctx, "redrive", began, float64(n)/o.PerSecond); err != nil {
					return err
				}
			}
			words, err := p.Redrive(ctx, maxAge, deadLetters(batch[:size])...)
			if err != nil {
				return err
			}
			for i, word := range words {
				if word == store.RedriveDone {
					n++
				} else if why := q.redriveRefused(batch[i].ID, word); why != nil {
					refused.add(why)
				}
			}
			if n == o.Limit && n > 0 || errors.Is(refused.first, ErrQueueFull) {
				return errEnough
			}
			batch = batch[size:]
		}
		return nil
	})
	if err == nil || errors.Is(err, errEnough) {
		err = refused.err()
	}
	return n, err
}

// errEnough ends a scan before its end.
var errEnough = errors.New("enough")

// refusals are why letters stay dead.
type refusals struct {
	first error // the first ErrQueueFull, if there is one
	n     int
}

func (r *refusals) add(why error) {
	r.n++
	if r.first == nil || errors.Is(why, ErrQueueFull) && !errors.Is(r.first, ErrQueueFull) {
		r.first = why
	}
}

func (r *refusals) err() error {
	if r.n > 1 {
		return fmt.Errorf("%w (%d more were refused)", r.first, r.n-1)
	}
	return r.first
}

// sleepUntil waits until so many seconds are over since a time.
func sleepUntil(ctx context.Context, op string, since time.Time, seconds float64) error {
	const longest = float64(math.MaxInt64 / time.Second)
	timer := time.NewTimer(time.Until(since.Add(time.Duration(min(seconds, longest) * float64(time.Second)))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return store.CallerGone(ctx, op)
	}
}
