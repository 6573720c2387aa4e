package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// ending is what a Wait came to.
type ending struct {
	status delayqueue.Status
	err    error
	at     time.Time
}

// wait waits for a message in the background.
func (b *bench) wait(q *delayqueue.Queue, id string) <-chan ending {
	ended := make(chan ending, 1)
	go func() {
		s, err := q.Wait(b.t.Context(), id)
		ended <- ending{s, err, time.Now()}
	}()
	return ended
}

// told waits until n waiters are told of ends, and have looked since.
func (b *bench) told(q *delayqueue.Queue, n int) {
	b.t.Helper()
	redistest.Eventually(b.t, func() bool { return q.ToldWaiters() == n }, "waiters that are told")
	time.Sleep(700 * time.Millisecond) // beyond their last look that was not
}

const soonTold = 5 * time.Second // the next look of one that is not told is later

func TestWait_EveryEndIsTold(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		fails := map[delayqueue.State]error{delayqueue.StateDead: delayqueue.SkipRetry(errors.New("no")), delayqueue.StateExpired: errors.New("not yet")}
		for _, end := range []delayqueue.State{delayqueue.StateDone, delayqueue.StateDead, delayqueue.StateExpired, delayqueue.StateCancelled} {
			for _, key := range []string{"", "k"} {
				id := b.enqueue(delayqueue.Job{Key: key, MaxAge: 10 * time.Second})
				ended := b.wait(b.queue, id)
				b.told(b.queue, 1)
				began := time.Now()
				stop := func(context.Context) error { return nil }
				if end == delayqueue.StateCancelled {
					require.NoError(t, b.queue.Cancel(t.Context(), id))
				} else {
					stop = b.start(func(context.Context, delayqueue.Message) error { return fails[end] }, delayqueue.WithRetryBackoff(time.Minute, time.Minute)).Stop
				}
				got := next(t, ended)
				require.NoError(t, got.err)
				require.Equal(t, end, got.status.State)
				require.Less(t, got.at.Sub(began), soonTold)
				require.NoError(t, stop(t.Context()))
			}
		}
	}, kinds["three sealed partitions"]...)
}

// Nobody works: no script tells that a message has become too old.
func TestWait_WhatBecomesTooOld(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		b, began := setup(t, env), time.Now()
		got := next(t, b.wait(b.queue, b.enqueue(delayqueue.Job{MaxAge: 2 * time.Second})))
		require.NoError(t, got.err)
		require.Equal(t, delayqueue.StateExpired, got.status.State)
		require.WithinDuration(t, began.Add(2*time.Second), got.at, time.Second)
	})
}

func TestWait_NobodyIsToldWhileNobodyWaits(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		sub := b.rdb.Subscribe(t.Context(), b.key("ended"))
		defer func() { _ = sub.Close() }()
		require.NoError(t, errOf(sub.Receive(t.Context())))
		b.start((&ran{}).handle)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		id := b.enqueue(delayqueue.Job{Delay: 2 * time.Second})
		ended := b.wait(b.queue, id)
		require.NoError(t, next(t, ended).err)
		first := of(sub.ReceiveMessage(t.Context()))(t)
		require.Equal(t, id, first.Payload, "the one before had nobody who waited")
		redistest.Eventually(t, func() bool { return b.rdb.PubSubNumSub(t.Context(), b.key("ended")).Val()[b.key("ended")] == 1 }, "the waiter has gone")
	})
}

// Waiters of a process share a subscription, cost little while they are idle, and learn of the end at once.
func TestWait_ManyWaiters(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		const waiters, messages, idle = 40, 8, 13 * time.Second
		ids := make([]string, messages)
		for i := range ids {
			ids[i] = b.enqueue(delayqueue.Job{Key: fmt.Sprint(i), Delay: time.Minute})
		}
		var commands atomic.Int64
		rdb := b.env.Client(t)
		rdb.AddHook(redistest.BeforeEach(func(redis.Cmder) { commands.Add(1) }))
		q := b.newQueue(rdb)
		var ended []<-chan ending
		for i := range waiters {
			ended = append(ended, b.wait(q, ids[i%messages]))
		}
		subscriptions := func() int64 { return b.rdb.PubSubNumSub(t.Context(), b.key("ended")).Val()[b.key("ended")] }
		b.told(q, waiters)
		require.EqualValues(t, 1, subscriptions())

		before := commands.Load()
		time.Sleep(idle)
		require.Less(t, float64(commands.Load()-before)/waiters/idle.Seconds(), 0.3)

		for i, id := range ids {
			began := time.Now()
			require.NoError(t, b.queue.Cancel(t.Context(), id))
			for w := i; w < waiters; w += messages {
				got := next(t, ended[w])
				require.NoError(t, got.err)
				require.Equal(t, delayqueue.StateCancelled, got.status.State)
				require.Less(t, got.at.Sub(began), 100*time.Millisecond)
			}
		}
		redistest.Eventually(t, func() bool { return subscriptions() == 0 }, "no subscription is left")
	}, delayqueue.WithPartitions(4))
}

// lossy are the connections of a client in a bubble.
type lossy struct {
	refuse, deaf atomic.Bool // deaf: what Redis publishes is lost
	mu           sync.Mutex
	all          []net.Conn
}

type lossyConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c lossyConn) Read(p []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(p); err != nil || !c.deaf.Load() || !bytes.Contains(p[:n], []byte(":ended")) {
			return n, err
		}
	}
}

func (l *lossy) client(t *testing.T, env *redistest.Env) *redis.Client {
	t.Helper()
	opt := *env.Client(t).Options()
	dial := opt.Dialer
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if l.refuse.Load() {
			return nil, syscall.ECONNREFUSED
		}
		conn, err := dial(ctx, network, addr)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, conn)
		return lossyConn{conn, &l.deaf}, err
	}
	return redistest.Client(t, &opt)
}

func (l *lossy) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.all {
		_ = conn.Close()
	}
}

// What ends while the subscription is lost is seen when there is one again.
func TestWait_ALostSubscription(t *testing.T) {
	for name, lose := range map[string]func(l *lossy, end func()){
		"for a while": func(l *lossy, end func()) {
			l.refuse.Store(true)
			l.cut()
			end()
			time.Sleep(500 * time.Millisecond)
			l.refuse.Store(false)
		},
		"with a message": func(l *lossy, end func()) {
			l.deaf.Store(true)
			end()
			time.Sleep(100 * time.Millisecond)
			l.deaf.Store(false)
			l.cut()
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, b *bench) {
				l := &lossy{}
				q := b.newQueue(l.client(t, b.env))
				id := b.enqueue(delayqueue.Job{Delay: time.Minute})
				ended := b.wait(q, id)
				b.told(q, 1)
				lose(l, func() { require.NoError(t, b.queue.Cancel(t.Context(), id)) })
				require.Empty(t, ended)
				healed := time.Now()
				got := next(t, ended)
				require.NoError(t, got.err)
				require.Equal(t, delayqueue.StateCancelled, got.status.State)
				require.Less(t, got.at.Sub(healed), soonTold)
			})
		})
	}
}

// Who may use no channel stores and cancels as a whole, and looks again and again for what it waits for.
func TestWait_ChannelsAreDenied(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"})
	require.NoError(t, b.rdb.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all").Err())
	b.queue = b.newQueue(redistest.Client(t, &redis.Options{Addr: server.Addr, Username: "deaf", Password: "pw"}))
	ids := []string{b.enqueue(delayqueue.Job{})}
	for i := range 3 {
		ids = append(ids, b.enqueue(delayqueue.Job{Key: fmt.Sprint(i), Delay: time.Minute}))
	}
	require.EqualValues(t, len(ids), b.inState()[0])
	ended := b.wait(b.queue, ids[1])
	time.Sleep(time.Second)
	require.Zero(t, b.queue.ToldWaiters())
	require.Equal(t, len(ids), b.cancelAll(delayqueue.Filter{}))
	require.NoError(t, next(t, ended).err)
	for _, id := range ids {
		require.Equal(t, delayqueue.StateCancelled, b.status(id).State)
	}
	require.Zero(t, b.inState())
	require.Positive(t, b.rdb.TTL(t.Context(), b.key("c")).Val())
}

func TestWait_TheCallerLeaves(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		id := b.enqueue(delayqueue.Job{Delay: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		s, err := b.queue.Wait(ctx, id)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, delayqueue.StateQueued, s.State)
		require.Zero(t, b.queue.ToldWaiters())
		require.ErrorIs(t, errOf(b.queue.Wait(t.Context(), "unknown")), delayqueue.ErrNotFound)
	})
}
