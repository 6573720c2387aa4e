package main

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"
)

//go:embed lua
var luaFiles embed.FS

// script is that of a file in lua.
func script(name string) *redis.Script {
	return redis.NewScript(string(must(luaFiles.ReadFile("lua/" + name + ".lua"))))
}

var releaseScript, renewScript, claimScript = script("release"), script("renew"), script("claim")

// pollEvery is how often those ask again that can only poll.
const pollEvery = 10 * time.Millisecond

// raw is the floor: the leanest lock that a team writes by hand. SET NX PX with a token that
// costs nothing to make, and a script, known to Redis beforehand, that deletes the key if the
// token is still there. It polls for a held key. No fence, no renewal, no answer to a lost
// reply, and its commands do not end with the caller's ctx.
type raw struct {
	*redis.Client
	lease  time.Duration
	do     func(redis.Cmder) // sends a command, and returns when it has its reply
	name   string            // tokens begin with it
	tokens atomic.Int64      // made so far

	mu      sync.Mutex
	renewed map[*rawLease]struct{} // nil: leases are not renewed
}

func newRaw(b *bench, t Target) lock { return openRaw(b, t).acquire }

func openRaw(b *bench, t Target) *raw {
	r := &raw{Client: b.client(t.Addr), lease: t.Lease, name: rand.Text() + "."}
	r.do = func(cmd redis.Cmder) { _ = r.Process(context.Background(), cmd) }
	check(releaseScript.Load(b.ctx, r.Client).Err())
	return r
}

func (r *raw) acquire(ctx context.Context, key string) (lease, error) {
	h := &rawLease{raw: r, key: key, token: r.name + strconv.FormatInt(r.tokens.Add(1), 36)}
	for {
		set := redis.NewBoolCmd(context.Background(), "set", h.key, h.token, "px", r.lease.Milliseconds(), "nx")
		if r.do(set); set.Err() != nil {
			return nil, set.Err()
		}
		if set.Val() {
			break
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
	if r.renewed != nil {
		r.mu.Lock()
		r.renewed[h] = struct{}{}
		r.mu.Unlock()
	}
	return h, nil
}

type rawLease struct {
	*raw
	key, token string
}

func (h *rawLease) Release(context.Context) error {
	if h.renewed != nil {
		h.mu.Lock()
		delete(h.renewed, h)
		h.mu.Unlock()
	}
	del := redis.NewCmd(context.Background(), "evalsha", releaseScript.Hash(), 1, h.key, h.token)
	h.do(del)
	n, err := del.Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("%q was lost", h.key)
	}
	return err
}

// newRenewed is raw with the least that keeps leases alive: one goroutine that
// renews all of them three times a lease, in pipelines. It looks at no reply.
func newRenewed(b *bench, t Target) lock {
	r := openRaw(b, t)
	r.renewed = map[*rawLease]struct{}{}
	check(renewScript.Load(b.ctx, r.Client).Err())
	go r.renew(b.ctx)
	return r.acquire
}

func (r *raw) renew(ctx context.Context) {
	var all []*rawLease
	for pause(ctx, r.lease/3) == nil {
		r.mu.Lock()
		all = slices.AppendSeq(all[:0], maps.Keys(r.renewed))
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

// newGroup is raw with group commit: while a pipeline is in flight the commands of
// other callers are collected, and they are the next pipeline. It is what
// concurrent callers gain when they share round trips.
func newGroup(b *bench, t Target) lock {
	type call struct {
		redis.Cmder
		done chan struct{} // closed: it has its reply
	}
	r, calls := openRaw(b, t), make(chan call, 1000)
	r.do = func(cmd redis.Cmder) {
		c := call{cmd, make(chan struct{})}
		calls <- c
		<-c.done
	}
	go func() {
		ctx := context.Background() // a caller's ctx is one of many
		for {
			var batch []call
			select {
			case first := <-calls:
				batch = append(batch, first)
			case <-b.ctx.Done(): // calls stays open: workers that hang may send yet
				return
			}
			for len(calls) > 0 {
				batch = append(batch, <-calls)
			}
			pipe := r.Pipeline()
			for _, c := range batch {
				_ = pipe.Process(ctx, c.Cmder)
			}
			_, _ = pipe.Exec(ctx) // each command has its own error
			for _, c := range batch {
				close(c.done)
			}
		}
	}()
	return r.acquire
}

// token is the fastest hand-over that Redis has, and no lock: one element of a
// list, which goes to whoever has waited longest in BLPOP. A holder that dies
// takes it along.
type token struct {
	*redis.Client
	known sync.Map // keys that have their element
}

func newToken(b *bench, t Target) lock {
	list := openToken(b, t)
	return func(ctx context.Context, key string) (lease, error) {
		pass := func(ctx context.Context) error { return list.pass(ctx, key) }
		return releaseFunc(pass), list.take(ctx, key)
	}
}

// openToken gives every goroutine a connection to block.
func openToken(b *bench, t Target) *token {
	rdb := redis.NewClient(&redis.Options{Addr: t.Addr, PoolSize: t.Workers + 4})
	b.cleanup(rdb.Close)
	return &token{Client: rdb}
}

// take blocks for a second at a time, since go-redis does not interrupt a read
// when ctx ends.
func (t *token) take(ctx context.Context, key string) error {
	if _, known := t.known.LoadOrStore(key, true); !known {
		// A key gets its element once for all processes.
		first, err := t.SetNX(ctx, "made:"+key, 1, time.Hour).Result()
		if first {
			err = t.pass(ctx, key)
		}
		if err != nil {
			return err
		}
	}
	err := error(redis.Nil)
	for errors.Is(err, redis.Nil) && ctx.Err() == nil {
		err = t.BLPop(ctx, time.Second, key).Err()
	}
	return err
}

func (t *token) pass(ctx context.Context, key string) error {
	return t.RPush(ctx, key, "token").Err()
}

// cohort is token behind a process's own queue. While the token is in the
// process it goes to the next goroutine without Redis, for a while. No lock that excludes processes can hand over faster.
type cohort struct { // of one key
	*token
	key     string
	waiting atomic.Int64
	mutex   *semaphore.Weighted // first come, first served
	// Whoever has mutex:
	hasToken bool
	since    time.Time // when the token came
}

func newCohort(b *bench, t Target) lock {
	var cohorts sync.Map // by key
	list := openToken(b, t)
	return func(ctx context.Context, key string) (lease, error) {
		c, ok := cohorts.Load(key)
		if !ok {
			c, _ = cohorts.LoadOrStore(key, &cohort{token: list, key: key, mutex: semaphore.NewWeighted(1)})
		}
		return c.(*cohort).acquire(ctx)
	}
}

func (c *cohort) acquire(ctx context.Context) (lease, error) {
	c.waiting.Add(1)
	err := c.mutex.Acquire(ctx, 1)
	c.waiting.Add(-1)
	if err != nil || c.hasToken {
		return c, err
	}
	if err := c.take(ctx, c.key); err != nil {
		c.mutex.Release(1)
		return nil, err
	}
	c.hasToken, c.since = true, time.Now()
	return c, nil
}

func (c *cohort) Release(ctx context.Context) (err error) {
	// Four processes take turns within two milliseconds.
	if c.waiting.Load() == 0 || time.Since(c.since) >= 250*time.Microsecond {
		// The token is passed on first: who fetches it queues after those that wait.
		c.hasToken = false
		err = c.pass(ctx, c.key)
	}
	c.mutex.Release(1)
	return err
}

// newMessage is the least that a lock does which hands over by a message: a script hands it over to the one call that
// waits, and publishes that to its process, which has one subscription. The PING before it has Redis send the
// message before the script's reply. No fence, no renewal, no check of who holds it, and a call waits for a lost
// message without end. Other scripts add a fence, and check who holds it.
func newMessage(takeScript, tellScript string) func(*bench, Target) lock {
	return func(b *bench, t Target) lock {
		ctx, id, rdb := context.Background(), rand.Text(), b.client(t.Addr) // id names the channel
		take, tell := script(takeScript), script(tellScript)
		check(errors.Join(take.Load(ctx, rdb).Err(), tell.Load(ctx, rdb).Err()))
		sub, messages := rdb.Subscribe(b.ctx, id), make(chan struct{}, 1)
		b.cleanup(sub.Close)
		must(sub.Receive(b.ctx))
		go func() {
			for {
				if _, err := sub.ReceiveMessage(b.ctx); err != nil {
					return
				}
				messages <- struct{}{}
			}
		}()
		return func(waits context.Context, key string) (lease, error) {
			keys := []string{"told:" + key, "waits:" + key}
			release := releaseFunc(func(context.Context) error {
				pipe := rdb.Pipeline()
				pipe.Ping(ctx)
				tell.EvalSha(ctx, pipe, keys, id)
				_, err := pipe.Exec(ctx)
				return err
			})
			taken, err := take.EvalSha(ctx, rdb, keys, id, t.Lease.Milliseconds()).Bool()
			if err != nil || taken {
				return release, err
			}
			select {
			case <-messages:
				return release, nil
			case <-waits.Done():
				return nil, waits.Err()
			}
		}
	}
}
