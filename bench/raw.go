package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/renew.lua
	renewSource string

	releaseScript = redis.NewScript(releaseSource)
	renewScript   = redis.NewScript(renewSource)
)

// pollEvery is how often those ask again that can only poll.
const pollEvery = 10 * time.Millisecond

// raw is the floor: the leanest lock that a team writes by hand. SET NX PX with a token that
// costs nothing to make, and a script, known to Redis beforehand, that deletes the key if the
// token is still there. It polls for a held key. No fence, no renewal, no answer to a lost
// reply, and its commands do not end with the caller's ctx.
type raw struct {
	*redis.Client
	lease  time.Duration
	prefix string
	do     func(redis.Cmder) // sends a command, and returns when it has its reply
	name   string            // tokens begin with it
	tokens atomic.Int64      // made so far
}

func newRaw(t target) (lock, error) { return openRaw(t, "raw:") }

func openRaw(t target, prefix string) (*raw, error) {
	ctx := context.Background()
	r := &raw{Client: t.client(), lease: t.lease, prefix: prefix, name: rand.Text() + "."}
	r.do = func(cmd redis.Cmder) { _ = r.Process(ctx, cmd) }
	return r, releaseScript.Load(ctx, r.Client).Err()
}

func (r *raw) Acquire(ctx context.Context, key string) (lease, error) { return r.acquire(ctx, key) }

func (r *raw) acquire(ctx context.Context, key string) (*rawLease, error) {
	h := &rawLease{raw: r, key: r.prefix + key, token: r.name + strconv.FormatInt(r.tokens.Add(1), 36)}
	for {
		set := redis.NewBoolCmd(context.Background(), "set", h.key, h.token, "px", r.lease.Milliseconds(), "nx")
		if r.do(set); set.Err() != nil || set.Val() {
			return h, set.Err()
		}
		if err := pause(ctx, pollEvery); err != nil {
			return h, err
		}
	}
}

type rawLease struct {
	*raw
	key, token string
}

func (h *rawLease) Release(context.Context) error {
	del := redis.NewCmd(context.Background(), "evalsha", releaseScript.Hash(), 1, h.key, h.token)
	h.do(del)
	n, err := del.Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("%q was lost", h.key)
	}
	return err
}

// renewed is raw with the least that keeps leases alive: one goroutine that
// renews all of them three times a lease, in pipelines. It looks at no reply.
type renewed struct {
	*raw
	stop func()

	mu     sync.Mutex
	leases map[*rawLease]struct{}
}

func newRenewed(t target) (lock, error) {
	rawLock, err := openRaw(t, "raw:")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &renewed{raw: rawLock, leases: map[*rawLease]struct{}{}}
	var wg sync.WaitGroup
	r.stop = func() {
		cancel()
		wg.Wait()
	}
	wg.Go(func() { r.renew(ctx) })
	return r, renewScript.Load(ctx, r.Client).Err()
}

func (r *renewed) Close() error {
	r.stop()
	return r.raw.Close()
}

func (r *renewed) Acquire(ctx context.Context, key string) (lease, error) {
	h, err := r.acquire(ctx, key)
	if err == nil {
		r.mu.Lock()
		r.leases[h] = struct{}{}
		r.mu.Unlock()
	}
	return renewedLease{h, r}, err
}

type renewedLease struct {
	*rawLease
	renewed *renewed
}

func (h renewedLease) Release(ctx context.Context) error {
	h.renewed.mu.Lock()
	delete(h.renewed.leases, h.rawLease)
	h.renewed.mu.Unlock()
	return h.rawLease.Release(ctx)
}

func (r *renewed) renew(ctx context.Context) {
	var all []*rawLease
	for pause(ctx, r.lease/3) == nil {
		r.mu.Lock()
		all = slices.AppendSeq(all[:0], maps.Keys(r.leases))
		r.mu.Unlock()
		for batch := range slices.Chunk(all, 1000) {
			pipe := r.Pipeline()
			for _, h := range batch {
				renewScript.EvalSha(ctx, pipe, []string{h.key}, h.token, r.lease.Milliseconds())
			}
			_, _ = pipe.Exec(ctx)
		}
	}
}
