package idempotency

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/along"
)

func init() {
	along.Of = func(store any, name, fingerprint string) along.Work {
		s := store.(*Store)
		return &ride{Store: s, work: Work{name, fingerprint}, record: s.name(name), lasts: s.ttl.Milliseconds()}
	}
}

// ride is work that is begun along with its lock's acquire, and finished along with its release, if the lock takes it along. A Begin that
// did not ride, or not under the caller's fence, is made up for; and only what was begun so is finished so.
type ride struct {
	*Store
	work            Work
	record          string     // its name in Redis
	lasts           int64      // in ms
	begun, finished *redis.Cmd // what Redis said
	fence           int64
	outcome         []byte // to be stored along with the release
}

func (r *ride) Client() redis.UniversalClient { return r.rdb }

func (r *ride) Acquire(ctx context.Context, lock, token string) *redis.Cmd {
	return beginScript.Call(ctx, append(beginScript.Args(make([]any, 0, 8), 2), &r.record, lock, &r.work.Fingerprint, token, &r.lasts), false).Cmd
}

func (r *ride) Acquired(reply *redis.Cmd) { r.begun = reply }

func (r *ride) Release(ctx context.Context) *redis.Cmd {
	if r.outcome == nil {
		return nil
	}
	// With its source: to send a script that Redis does not know once more is too late, since the key may be another's by then.
	args := append(finishScript.Whole(make([]any, 0, 8), 1), &r.record, &r.work.Fingerprint, &r.fence, &r.lasts, r.seal(r.work, r.outcome))
	return finishScript.Call(ctx, args, false).Cmd
}

func (r *ride) Released(reply *redis.Cmd) { r.finished = reply }

func (r *ride) Begin(ctx context.Context, fence int64) (outcome []byte, err error) {
	if r.begun != nil {
		if reply, err := r.begun.StringSlice(); err == nil && len(reply) == 3 {
			if its, _ := strconv.ParseInt(reply[2], 10, 64); its == fence {
				r.fence = fence
				return r.began(ctx, r.work, reply, nil)
			}
		}
	}
	return r.Store.Begin(ctx, r.work, fence)
}

func (r *ride) Finish(ctx context.Context, fence int64, outcome []byte) error {
	if r.fence != fence {
		return r.finish(ctx, fence, outcome)
	}
	r.outcome = outcome
	return nil
}

// finish is the Store's, also for a caller who has left.
func (r *ride) finish(ctx context.Context, fence int64, outcome []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	return r.Store.Finish(ctx, r.work, fence, outcome)
}

// finishTimeout bounds how long an unresponsive Redis delays a response.
const finishTimeout = 3 * time.Second

func (r *ride) Finished(ctx context.Context) error {
	if r.outcome == nil {
		return nil
	}
	if r.finished == nil || r.finished.Err() != nil {
		return r.finish(ctx, r.fence, r.outcome)
	}
	_, err := r.said(ctx, "finish", r.finished)
	r.observe(ctx, r.work.Name, EventStored, err)
	return err
}
