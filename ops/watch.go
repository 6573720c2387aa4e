package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/listener"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

var watchScript = luascript.Load(scripts, "watch")

// ErrTooManyWatches is the error of Watch when 16 others are watching under the prefix.
var ErrTooManyWatches = errors.New("too many watches")

// watchBuffer is how many events may wait for their reader.
const watchBuffer = 1024

// Watched says which keys to watch, and for how long.
type Watched struct {
	// Key is the key to watch. With Prefix: every key that begins with it, so all keys if it is
	// empty.
	Key    string
	Prefix bool
	// For is for how long: at most, and by default, 10 min.
	For time.Duration
}

// Watcher gets the events of the keys that it watches, until its ctx ends, its time is over, or Close.
type Watcher struct {
	rdb     redis.UniversalClient
	prefix  string
	watch   watch
	events  chan Event
	dropped atomic.Int64

	cancel context.CancelFunc
	done   chan struct{}
}

// Watch returns a Watcher that gets what happens to some keys from every process with a
// Beacon under prefix, the empty prefix being the default one: how each call for them
// ends, waits, leases and their ends, and messages of queues. A process learns of the
// watch with its next report, so within some 10 s. It sends at most 200 events a second,
// for all watches together. Events can be lost: see Watcher.Dropped.
//
// Watch blocks until it is subscribed and registered in Redis: no longer than ctx allows, but for a command that go-redis has under
// way, and one more after an error. Its error wraps [ErrTooManyWatches], [core.ErrUnavailable], [core.ErrInvalidOption], or the cause for which ctx ended. End it
// with Close, or by ctx.
func Watch(ctx context.Context, rdb redis.UniversalClient, prefix string, keys Watched) (*Watcher, error) {
	prefix, keys.For = cmp.Or(prefix, ident.DefaultPrefix), cmp.Or(keys.For, maxWatch)
	switch {
	case nilcheck.IsNil(rdb):
		return nil, invalid("Watch: the redis client is nil")
	case !ident.ValidPrefix(prefix):
		return nil, invalid("Watch: the prefix %q", prefix)
	case keys.Key == "" && !keys.Prefix, len(keys.Key) > core.MaxKeyLen:
		return nil, invalid("Watch: a key of %d bytes: want 1 to %d, or a prefix of none", len(keys.Key), core.MaxKeyLen)
	case keys.For < time.Second || keys.For > maxWatch:
		return nil, invalid("Watch: for %s: want 1 s to %s", keys.For, maxWatch)
	}
	w := &Watcher{
		rdb: bounded(rdb), prefix: prefix, watch: watch{id: ident.Random(8), key: keys.Key, isPrefix: keys.Prefix},
		events: make(chan Event, watchBuffer), done: make(chan struct{}),
	}
	up, down := make(chan struct{}, 1), make(chan error, 1)
	sub := listener.New(rdb, watchChannel(prefix, w.watch.id), func() { offer(up, struct{}{}) }, func(err error) { offer(down, err) }, w.take)
	sub.Start()
	if err := w.begin(ctx, up, down, keys.For); err != nil {
		sub.Close()
		return nil, err
	}
	ctx, w.cancel = context.WithTimeout(ctx, keys.For)
	go w.run(ctx, sub)
	return w, nil
}

func offer[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

// begin waits for the subscription, and then registers: what is published from then on is heard.
func (w *Watcher) begin(ctx context.Context, up chan struct{}, down chan error, d time.Duration) error {
	const op = "watch"
	select {
	case <-up:
	case err := <-down:
		return unavailable(ctx, op, err)
	case <-ctx.Done():
		return unavailable(ctx, op, nil)
	}
	call := watchScript.Prepare(ctx, []string{watchesKey(w.prefix)}, w.watch.text(), d.Milliseconds(), maxWatches)
	call.Send(ctx, w.rdb)
	done, err := call.Int()
	if err != nil {
		w.forget(ctx) // its reply may be lost: it would keep a place until its time is over
		return unavailable(ctx, op, err)
	}
	if done == 0 {
		return fmt.Errorf("ops: %s: %w: %d under the prefix %q; each ends after %s at most", op, ErrTooManyWatches, maxWatches, w.prefix, maxWatch)
	}
	return nil
}

func (w *Watcher) run(ctx context.Context, sub *listener.Listener) {
	defer close(w.done)
	defer close(w.events)
	<-ctx.Done()
	w.cancel()
	w.forget(ctx)
	sub.Close()
}

// forget has Redis forget the watch. If it does not, the watch's time is over some day.
func (w *Watcher) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beaconTimeout)
	defer cancel()
	_ = w.rdb.ZRem(ctx, watchesKey(w.prefix), w.watch.text()).Err()
}

// take takes what a process has published.
func (w *Watcher) take(payload string) {
	var batch eventBatch
	if json.Unmarshal([]byte(payload), &batch) != nil {
		return
	}
	w.dropped.Add(max(0, batch.Dropped))
	for _, e := range batch.Events {
		select {
		case w.events <- e.event(batch.Process):
		default:
			w.dropped.Add(1)
		}
	}
}

// Events returns the channel of events, which is closed when the Watcher ends. Events of one
// process arrive in order, some 250 ms late. If they are read too slowly, some are lost.
func (w *Watcher) Events() <-chan Event { return w.events }

// Dropped returns how many events are known to be missing: those beyond a process's 200 a second,
// and those not read in time. Events published while the subscription is broken are missing too,
// and not counted.
func (w *Watcher) Dropped() int64 { return w.dropped.Load() }

// Close ends the watch, here and in all processes. It blocks for a round trip or, if
// Redis does not answer, until go-redis gives up, which takes some seconds. It may be
// called twice.
func (w *Watcher) Close() {
	w.cancel()
	<-w.done
}
