package core_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
)

// road is the way of acquires to Redis. Those of keys that begin with "busy", which are sent alone, wait on it to be told
// how to fail, or nil. A pipeline's first try gets to Redis, and its replies are lost when it is told so.
type road struct {
	busy, first chan error
	second      func(next func() error) error // of a pipeline
	tried       int
}

var errLost = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}

func (r *road) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *road) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isScript(cmd, "acquire") && strings.Contains(fmt.Sprint(cmd.Args()[3]), "busy") {
			if err := <-r.busy; err != nil {
				return refuse(cmd, err)
			}
		}
		return next(ctx, cmd)
	}
}

func (r *road) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !isScript(cmds[0], "acquire") && !isScript(cmds[0], "acquires") {
			return next(ctx, cmds)
		}
		if r.tried++; r.tried > 1 {
			return r.second(func() error { return next(ctx, cmds) })
		}
		_ = next(ctx, cmds)
		err := <-r.first
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
}

// An acquire that ran, and whose reply was lost, is to be sent again, and is not. What it was granted is released.
// It is long since half of it is a table.
func TestRetried_AnAcquireThatIsNotSentASecondTimeIsCancelled(t *testing.T) {
	t.Parallel()
	// wait has the acquires wait in the batcher to be sent again: enough others are in flight, and slow.
	wait := func(r *road, busy func(n int)) {
		busy(2)
		time.Sleep(20 * time.Millisecond) // so one more may be in flight
		busy(1)
		r.first <- errLost
		time.Sleep(10 * time.Millisecond) // the pause before a second try
	}
	for name, play := range map[string]struct {
		run     func(r *road, busy func(n int), leave func())
		want    error
		several bool // the client is for several servers
	}{
		"its caller leaves while it waits to be sent": {func(r *road, busy func(int), leave func()) {
			wait(r, busy)
			leave()
		}, context.Canceled, false},
		"its caller leaves while it waits for a connection": {func(r *road, _ func(int), leave func()) {
			r.second = func(next func() error) error {
				leave()
				return next()
			}
			r.first <- errLost
		}, context.Canceled, false},
		"its caller leaves before go-redis sends others of its pipeline to another node": {func(r *road, _ func(int), leave func()) {
			leave()
			r.first <- context.Canceled // for all that have no other error
		}, context.Canceled, true},
		"Redis is out of reach": {func(r *road, busy func(int), _ func()) {
			wait(r, busy)
			r.busy <- errLost
		}, core.ErrUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
				r := &road{busy: make(chan error), first: make(chan error)}
				rdb := nodes[0].client(t)
				rdb.AddHook(r)
				var client redis.UniversalClient = rdb
				if play.several {
					client = struct{ redis.UniversalClient }{rdb}
				}
				l := lockerOn(t, client, "p")
				warm(t, l)
				require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["acquires"]).Err()) // so that the first try runs
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				n, results := 0, make(chan error, 2)
				var callers, others sync.WaitGroup
				defer others.Wait()
				defer close(r.busy)
				busy := func(more int) {
					for range more {
						n++
						others.Go(func() { _, _ = l.TryAcquire(t.Context(), fmt.Sprint("busy", n)) })
						synctest.Wait()
					}
				}
				busy(3) // as many pipelines as may be in flight: the next calls share one
				for i := range 2 {
					callers.Go(func() {
						_, err := l.TryAcquire(ctx, fmt.Sprint("k", i))
						results <- err
					})
				}
				synctest.Wait()
				for range 3 {
					r.busy <- nil
				}
				synctest.Wait()
				require.Equal(t, 1, r.tried)
				play.run(r, busy, func() {
					cancel()
					callers.Wait()
				})
				for range 2 {
					require.ErrorIs(t, <-results, play.want)
				}
				time.Sleep(2 * time.Second)
				for _, key := range nodes[0].Keys() {
					require.Contains(t, key, "busy")
				}
			})
		})
	}
}
