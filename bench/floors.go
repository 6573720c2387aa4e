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
	prefix string
	do     func(redis.Cmder) // sends a command, and returns when it has its reply
	name   string            // tokens begin with it
	tokens atomic.Int64      // made so far

	mu      sync.Mutex
	renewed map[*rawLease]struct{} // nil: leases are not renewed
}

func newRaw(t target) (lock, error) { return openRaw(t, "raw:") }

func openRaw(t target, prefix string) (*raw, error) {
	ctx := context.Background()
	r := &raw{Client: t.client(), lease: t.Lease, prefix: prefix, name: rand.Text() + "."}
	r.do = func(cmd redis.Cmder) { _ = r.Process(ctx, cmd) }
	return r, errors.Join(releaseScript.Load(ctx, r.Client).Err(), renewScript.Load(ctx, r.Client).Err())
}

func (r *raw) Acquire(ctx context.Context, key string) (lease, error) {
	h := &rawLease{raw: r, key: r.prefix + key, token: r.name + strconv.FormatInt(r.tokens.Add(1), 36)}
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
func newRenewed(t target) (lock, error) {
	r, err := openRaw(t, "raw:")
	r.renewed = map[*rawLease]struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	go r.renew(ctx)
	stop := func() error {
		cancel()
		return r.Close()
	}
	return lockFunc{stop, r.Acquire}, err
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
func newGroup(t target) (lock, error) {
	r, err := openRaw(t, "group:")
	calls := make(chan groupCall, 1000)
	r.do = func(cmd redis.Cmder) {
		call := groupCall{cmd, make(chan struct{})}
		calls <- call
		<-call.done
	}
	go r.send(calls)
	stop := func() error {
		close(calls)
		return r.Close()
	}
	return lockFunc{stop, r.Acquire}, err
}

type groupCall struct {
	redis.Cmder
	done chan struct{} // closed: it has its reply
}

func (r *raw) send(calls <-chan groupCall) {
	ctx := context.Background() // a caller's ctx is one of many
	for first := range calls {
		batch := []groupCall{first}
		for len(calls) > 0 {
			batch = append(batch, <-calls)
		}
		pipe := r.Pipeline()
		for _, call := range batch {
			_ = pipe.Process(ctx, call.Cmder)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		for _, call := range batch {
			close(call.done)
		}
	}
}

// token is the fastest hand-over that Redis has, and no lock: one element of a
// list, which goes to whoever has waited longest in BLPOP. A holder that dies
// takes it along.
type token struct {
	*redis.Client
	prefix string
	known  sync.Map // keys that have their element
}

func newToken(t target) (lock, error) { return openToken(t, "token:"), nil }

// openToken gives every goroutine a connection to block.
func openToken(t target, prefix string) *token {
	return &token{Client: redis.NewClient(&redis.Options{Addr: t.Addr, PoolSize: t.Workers + 4}), prefix: prefix}
}

func (t *token) Acquire(ctx context.Context, key string) (lease, error) {
	return &tokenLease{t, key}, t.take(ctx, key)
}

// take blocks for a second at a time, since go-redis does not interrupt a read
// when ctx ends.
func (t *token) take(ctx context.Context, key string) error {
	if _, known := t.known.Load(key); !known {
		t.known.Store(key, true)
		if err := t.make(ctx, key); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		err := t.BLPop(ctx, time.Second, t.prefix+key).Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return ctx.Err()
}

// make gives a key its element, once for all processes.
func (t *token) make(ctx context.Context, key string) error {
	first, err := t.SetNX(ctx, t.prefix+"made:"+key, 1, time.Hour).Result()
	if first {
		err = t.pass(ctx, key)
	}
	return err
}

func (t *token) pass(ctx context.Context, key string) error {
	return t.RPush(ctx, t.prefix+key, "token").Err()
}

type tokenLease struct {
	*token
	key string
}

func (h *tokenLease) Release(ctx context.Context) error { return h.pass(ctx, h.key) }

// cohortBudget is how long a process may hand the token from goroutine to
// goroutine before it passes it on: short enough that four processes take turns
// within two milliseconds.
const cohortBudget = 250 * time.Microsecond

// cohort is token behind a process's own queue. While the token is in the
// process it goes to the next goroutine without Redis, until the budget
// is spent. No lock that excludes processes can hand over faster.
type cohort struct {
	*token
	keys sync.Map // of *cohortKey
}

// cohortKey is one key in one process.
type cohortKey struct {
	*cohort
	key     string
	waiting atomic.Int64
	mutex   *semaphore.Weighted // first come, first served
	// Whoever has mutex:
	hasToken bool
	since    time.Time // when the token came
}

func newCohort(t target) (lock, error) { return &cohort{token: openToken(t, "cohort:")}, nil }

func (c *cohort) Acquire(ctx context.Context, key string) (lease, error) {
	v, ok := c.keys.Load(key)
	if !ok {
		v, _ = c.keys.LoadOrStore(key, &cohortKey{cohort: c, key: key, mutex: semaphore.NewWeighted(1)})
	}
	k := v.(*cohortKey)
	k.waiting.Add(1)
	err := k.mutex.Acquire(ctx, 1)
	k.waiting.Add(-1)
	if err != nil || k.hasToken {
		return k, err
	}
	if err := k.take(ctx, key); err != nil {
		k.mutex.Release(1)
		return nil, err
	}
	k.hasToken, k.since = true, time.Now()
	return k, nil
}

func (k *cohortKey) Release(ctx context.Context) (err error) {
	if k.waiting.Load() == 0 || time.Since(k.since) >= cohortBudget {
		// The token is passed on first: who fetches it queues after those that wait.
		k.hasToken = false
		err = k.pass(ctx, k.key)
	}
	k.mutex.Release(1)
	return err
}

// message is the least that a lock does which hands over by a message: a script hands it over to the one call that
// waits, and publishes that to its process, which has one subscription. The PING before it has Redis send the
// message before the script's reply. No fence, no renewal, no check of who holds it, and a call waits for a lost
// message without end. Other scripts add a fence, and check who holds it.
type message struct {
	*redis.Client
	sub      *redis.PubSub
	id       string // names its channel
	messages chan struct{}

	take, tell *redis.Script
	lease      int64 // ms
}

func newMessage(take, tell string) func(target) (lock, error) {
	return func(t target) (lock, error) {
		ctx := context.Background()
		m := &message{
			Client: t.client(), id: rand.Text(), messages: make(chan struct{}, 1),
			take: script(take), tell: script(tell), lease: t.Lease.Milliseconds(),
		}
		m.sub = m.Subscribe(ctx, m.id)
		_, err := m.sub.Receive(ctx)
		go m.receive()
		return m, errors.Join(err, m.take.Load(ctx, m.Client).Err(), m.tell.Load(ctx, m.Client).Err())
	}
}

func (m *message) receive() {
	for {
		msg, err := m.sub.ReceiveTimeout(context.Background(), 0)
		if err != nil {
			return
		}
		if _, ok := msg.(*redis.Message); ok {
			m.messages <- struct{}{}
		}
	}
}

func (m *message) Close() error { return errors.Join(m.sub.Close(), m.Client.Close()) }

func (m *message) Acquire(ctx context.Context, key string) (lease, error) {
	h := &messageLease{m, []string{"told:" + key, "waits:" + key}}
	taken, err := m.take.EvalSha(context.Background(), m.Client, h.keys, m.id, m.lease).Bool()
	if err != nil || taken {
		return h, err
	}
	select {
	case <-m.messages:
		return h, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type messageLease struct {
	*message
	keys []string
}

func (h *messageLease) Release(context.Context) error {
	ctx, pipe := context.Background(), h.Pipeline()
	pipe.Ping(ctx)
	h.tell.EvalSha(ctx, pipe, h.keys, h.id)
	_, err := pipe.Exec(ctx)
	return err
}
