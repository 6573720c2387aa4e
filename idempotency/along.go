package idempotency

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/along"
)

func init() {
	along.Of = func(store any, name, fingerprint string) along.Work {
		s := store.(*Store)
		return &ride{store: s, work: Work{name, fingerprint}, record: s.name(name), lasts: s.ttl.Milliseconds()}
	}
}

// ride is work that is begun along with its lock's acquire, and finished along with its release, if the lock takes it along. A Begin that
// did not ride, or not under the caller's fence, is made up for; and only what was begun so is finished so.
type ride struct {
	store  *Store
	work   Work
	record string     // its name in Redis
	lasts  int64      // in ms
	begun  *redis.Cmd // what Redis said
	fence  int64      // under which it was begun

	outcome  []byte // to be stored along with the release, if that is pending: the handler may release the lock itself, at any time
	pending  atomic.Bool
	finished atomic.Pointer[redis.Cmd] // what Redis said
}

func (r *ride) Client() redis.UniversalClient { return r.store.rdb }

func (r *ride) Acquire(ctx context.Context, lock, token string) *redis.Cmd {
	return beginScript.Call(ctx, append(beginScript.Args(make([]any, 0, 8), 2), &r.record, lock, &r.work.Fingerprint, token, &r.lasts), false).Cmd
}

func (r *ride) Acquired(reply *redis.Cmd) { r.begun = reply }

func (r *ride) Pending() bool { return r.pending.Load() }

func (r *ride) Release(ctx context.Context) *redis.Cmd {
	if !r.Pending() {
		return nil
	}
	// With its source: to send a script that Redis does not know once more is too late, since the key may be another's by then.
	args := append(finishScript.Whole(make([]any, 0, 8), 1), &r.record, &r.work.Fingerprint, &r.fence, &r.lasts, r.store.seal(r.work, r.outcome))
	return finishScript.Call(ctx, args, false).Cmd
}

func (r *ride) Released(reply *redis.Cmd) { r.finished.Store(reply) }

func (r *ride) Begin(ctx context.Context, fence int64) (outcome []byte, err error) {
	if r.begun != nil {
		if reply, err := r.begun.StringSlice(); err == nil && len(reply) == 3 {
			if its, _ := strconv.ParseInt(reply[2], 10, 64); its == fence {
				r.fence = fence
				return r.store.began(ctx, r.work, reply, nil)
			}
		}
	}
	return r.store.Begin(ctx, r.work, fence)
}

func (r *ride) Finish(ctx context.Context, fence int64, outcome []byte) error {
	if r.fence == fence {
		r.outcome = outcome
		r.pending.Store(true)
		return nil
	}
	return r.finishAlone(ctx, fence, outcome)
}

// finishAlone is the Store's Finish, also for a caller who has left.
func (r *ride) finishAlone(ctx context.Context, fence int64, outcome []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second) // for so long an unresponsive Redis delays a response
	defer cancel()
	return r.store.Finish(ctx, r.work, fence, outcome)
}

func (r *ride) Finished(ctx context.Context) error {
	reply := r.finished.Load()
	switch {
	case !r.Pending():
		return nil
	case reply == nil || reply.Err() != nil:
		return r.finishAlone(ctx, r.fence, r.outcome)
	}
	_, err := r.store.said(ctx, "finish", reply)
	if r.store.observer != nil {
		r.store.observe(context.WithoutCancel(ctx), r.work.Name, EventStored, err)
	}
	return err
}
