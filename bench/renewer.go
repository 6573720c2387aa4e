package main

import (
	"context"
	_ "embed"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/renew.lua
var renewSource string

// renewBatch is how many renewals share a pipeline.
const renewBatch = 1000

// renewer is raw with the least that keeps leases alive: one goroutine that
// renews all of them three times a lease, in pipelines. It looks at no reply.
type renewer struct {
	*raw
	renewal string // the script's hash
	stop    chan struct{}
	done    chan struct{}

	mu     sync.Mutex
	leases map[*rawLock]struct{}
}

func newRenewer(t target) (contestant, error) {
	c, err := newRaw(t)
	if err != nil {
		return nil, err
	}
	r := &renewer{raw: c.(*raw), stop: make(chan struct{}), done: make(chan struct{}), leases: map[*rawLock]struct{}{}}
	if r.renewal, err = r.rdb.ScriptLoad(context.Background(), renewSource).Result(); err != nil {
		_ = r.rdb.Close()
		return nil, err
	}
	go r.renew()
	return r, nil
}

func (r *renewer) Close() error {
	close(r.stop)
	<-r.done
	return r.raw.Close()
}

func (r *renewer) Acquire(ctx context.Context, key string) (held, error) {
	h, err := r.acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.leases[h] = struct{}{}
	r.mu.Unlock()
	return renewed{h, r}, nil
}

type renewed struct {
	*rawLock
	renewer *renewer
}

func (h renewed) Release(ctx context.Context) error {
	h.renewer.mu.Lock()
	delete(h.renewer.leases, h.rawLock)
	h.renewer.mu.Unlock()
	return h.rawLock.Release(ctx)
}

func (r *renewer) renew() {
	defer close(r.done)
	ticker := time.NewTicker(r.lease / 3)
	defer ticker.Stop()
	var all []*rawLock
	for {
		select {
		case <-ticker.C:
		case <-r.stop:
			return
		}
		all = all[:0]
		r.mu.Lock()
		for h := range r.leases {
			all = append(all, h)
		}
		r.mu.Unlock()
		r.send(all)
	}
}

func (r *renewer) send(all []*rawLock) {
	ctx := context.Background()
	ms := r.lease.Milliseconds()
	for len(all) > 0 {
		n := min(len(all), renewBatch)
		_, _ = r.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, h := range all[:n] {
				pipe.EvalSha(ctx, r.renewal, []string{h.key}, h.token, ms)
			}
			return nil
		})
		all = all[n:]
	}
}
