package ops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

var by = ops.By{Who: "ann", Why: "it hangs"}

// desk is an operator, and what there is to operate.
type desk struct {
	*ops.Operator
	audit  *ops.Audit
	rdb    *redis.Client // the operator's
	locker *core.Locker  // somebody else's
	queue  *delayqueue.Queue
	log    *bytes.Buffer
}

// A record whose reply is lost is there once, and its change is not made.
func TestAudit_ALostReplyIsNotSentAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	lossy, rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr}), redistest.Client(t, &redis.Options{Addr: server.Addr})
	quiet := slog.New(slog.DiscardHandler)
	audit, err := ops.NewAudit(lossy, "p", quiet)
	require.NoError(t, err)
	sent := atomic.Int64{}
	proxy.LoseReply(func(request []byte) bool { return bytes.Contains(request, []byte("xadd")) && sent.Add(1) == 1 })
	change := ops.Change{Action: ops.ActionPause, Queue: "ship", Who: "ann", Why: "it hangs"}
	require.ErrorIs(t, audit.Record(t.Context(), &change), ops.ErrNotAudited)
	require.NoError(t, audit.Record(t.Context(), &change), "another try is another change")
	audit.Done(t.Context(), &change)
	audit, err = ops.NewAudit(rdb, "p", quiet)
	require.NoError(t, err)
	all, err := audit.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, change.ID, all[0].ID)
	require.Empty(t, all[1].Outcome, "it was not made")
}

func newDesk(t *testing.T, env *redistest.Env) desk {
	t.Helper()
	d := desk{rdb: env.Client(t), locker: newLocker(t, env), log: &bytes.Buffer{}}
	var err error
	d.audit, err = ops.NewAudit(d.rdb, env.Prefix, slog.New(slog.NewTextHandler(d.log, nil)))
	require.NoError(t, err)
	d.Operator, err = ops.NewOperator(newLocker(t, env), d.audit)
	require.NoError(t, err)
	d.queue = testbed.NewQueue(t, env.Client(t), "ship", delayqueue.WithPrefix(env.Prefix))
	return d
}

// latest is the latest change.
func (d *desk) latest(t *testing.T) ops.Change {
	t.Helper()
	all, err := d.audit.List(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// kill makes dead letters of jobs.
func (d *desk) kill(t *testing.T, jobs ...delayqueue.Job) (ids []string) {
	t.Helper()
	for _, job := range jobs {
		ticket, err := d.queue.Enqueue(t.Context(), job)
		require.NoError(t, err)
		ids = append(ids, ticket.ID)
	}
	w := testbed.Work(t, d.queue, d.locker, func(_ context.Context, m delayqueue.Message) error {
		return delayqueue.SkipRetry(errors.New("no " + m.Name))
	}, discards)
	redistest.Eventually(t, func() bool {
		s, err := d.queue.Stats(t.Context())
		return err == nil && s.Queued+s.Running == 0
	}, "all have died")
	require.NoError(t, w.Stop(t.Context()))
	return ids
}

func TestOperator_Unlocks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		key := "a <b>{}" + strings.Repeat("x", 500)
		lease, err := d.locker.TryAcquire(ctx, key)
		require.NoError(t, err)
		var changed *ops.ChangedError
		require.ErrorAs(t, d.Unlock(ctx, by, key, lease.Fence()-1), &changed)
		require.Contains(t, changed.Now, fmt.Sprint("with fence ", lease.Fence()))
		require.ErrorIs(t, changed, ops.ErrChanged)
		require.Contains(t, d.latest(t).Outcome, "refused: held by ")
		require.NoError(t, lease.Context().Err())

		require.NoError(t, d.Unlock(ctx, by, key, lease.Fence()))
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		c := d.latest(t)
		require.WithinDuration(t, time.Now(), c.At, time.Minute)
		require.NotEmpty(t, c.ID)
		c.ID, c.At = "", time.Time{}
		require.Equal(t, ops.Change{
			Action: ops.ActionUnlock, Key: key[:min(len(key), 512)], Seen: fmt.Sprint("fence ", lease.Fence()), Who: "ann", Why: "it hangs", Outcome: "taken from its holder",
		}, c)
		require.Contains(t, d.log.String(), "it hangs")

		require.ErrorAs(t, d.Unlock(ctx, by, key, lease.Fence()), &changed)
		require.Equal(t, "nobody holds it", changed.Now)
		for _, err := range []error{
			d.Unlock(ctx, by, key, 0), d.Unlock(ctx, by, "", 1), d.Unlock(ctx, ops.By{Who: "ann"}, key, 1), d.Unlock(ctx, ops.By{Why: "so"}, key, 1),
		} {
			require.ErrorIs(t, err, ops.ErrInvalidArgument)
		}
		all, err := d.audit.List(ctx, 10)
		require.NoError(t, err)
		require.Len(t, all, 3)
	})
}

// Nothing is changed that cannot be recorded.
func TestOperator_ChangesNothingWithoutAudit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		lease, err := d.locker.TryAcquire(ctx, "k")
		require.NoError(t, err)
		id := d.kill(t, delayqueue.Job{Name: "mail"})[0]
		store, err := idempotency.New(d.rdb, idempotency.WithPrefix(env.Prefix))
		require.NoError(t, err)
		request := ops.Request{Route: "POST /pay", Principal: "u", Key: "i"}
		_, err = store.Begin(ctx, idempotency.Work{Name: idempotency.NameOf("POST /pay", "u", "i"), Fingerprint: "f"}, 1)
		require.NoError(t, err)
		require.NoError(t, d.rdb.Set(ctx, env.Prefix+":ops:audit", "junk", 0).Err())
		letters := ops.Messages{Queue: "ship", Count: 1}
		_, redriven := d.Redrive(ctx, by, letters, delayqueue.RedriveOptions{})
		_, purged := d.Purge(ctx, by, ops.Messages{Queue: "ship", ID: id})
		_, cancelled := d.Cancel(ctx, by, ops.Messages{Queue: "ship"})
		for _, err := range []error{
			d.Unlock(ctx, by, "k", lease.Fence()), d.Pause(ctx, by, "ship", time.Minute), d.Resume(ctx, by, "ship"), redriven, purged, cancelled,
			d.Forget(ctx, by, request, "begun"),
		} {
			require.ErrorIs(t, err, ops.ErrNotAudited)
		}
		require.NoError(t, lease.Context().Err())
		s, err := d.queue.Stats(ctx)
		require.NoError(t, err)
		require.False(t, s.Paused)
		require.EqualValues(t, 1, s.Dead)
		record, err := d.Lookup(ctx, request)
		require.NoError(t, err)
		require.Equal(t, "begun", ops.RecordState(record))
	})
}

func TestOperator_LooksAfterMessages(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		d.kill(t, delayqueue.Job{Name: "mail"}, delayqueue.Job{Name: "mail", Key: "k"}, delayqueue.Job{Name: "pdf"}, delayqueue.Job{ID: "one", Name: "pdf"})
		mail := ops.Messages{Queue: "ship", Filter: delayqueue.Filter{Cause: "no mail"}, Count: 3}
		var changed *ops.ChangedError
		_, err := d.Redrive(ctx, by, mail, delayqueue.RedriveOptions{})
		require.ErrorAs(t, err, &changed)
		require.Equal(t, ops.ChangedError{Seen: "3 dead", Now: "2 dead"}, *changed)
		_, err = d.Purge(ctx, by, mail)
		require.ErrorIs(t, err, ops.ErrChanged)
		mail.Count = 2
		n, err := d.Redrive(ctx, by, mail, delayqueue.RedriveOptions{PerSecond: 1000})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		c := d.latest(t)
		require.Equal(t, []string{"2 done", "ship", `cause="no mail", 1000 a second`, "2 dead"}, []string{c.Outcome, c.Queue, c.Detail, c.Seen})

		queued := ops.Messages{Queue: "ship", Filter: delayqueue.Filter{Key: "k"}, Count: 1}
		n, err = d.Cancel(ctx, by, queued)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = d.Cancel(ctx, by, queued)
		require.ErrorAs(t, err, &changed)
		require.Equal(t, "0 queued", changed.Now)

		one := ops.Messages{Queue: "ship", ID: "one"}
		_, err = d.Cancel(ctx, by, one)
		require.ErrorAs(t, err, &changed)
		require.Equal(t, "it is dead", changed.Now)
		n, err = d.Redrive(ctx, by, one, delayqueue.RedriveOptions{MaxAge: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = d.Purge(ctx, by, one)
		require.ErrorAs(t, err, &changed)
		require.Equal(t, "it is queued", changed.Now)
		_, err = d.Cancel(ctx, by, one)
		require.NoError(t, err)
		require.Equal(t, "one", d.latest(t).Message)
		_, err = d.Purge(ctx, by, ops.Messages{Queue: "ship", ID: "none"})
		require.ErrorAs(t, err, &changed)
		require.Contains(t, changed.Now, "not known")
		n, err = d.Purge(ctx, by, ops.Messages{Queue: "ship", Count: 1})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = d.Purge(ctx, by, ops.Messages{Queue: "gone"})
		require.ErrorIs(t, err, delayqueue.ErrNoQueue)
		require.Contains(t, d.latest(t).Outcome, "failed: ")

		require.NoError(t, d.Pause(ctx, by, "ship", time.Minute))
		s, err := d.queue.Stats(ctx)
		require.NoError(t, err)
		require.True(t, s.Paused)
		require.NoError(t, d.Resume(ctx, by, "ship"))
		require.Error(t, d.Pause(ctx, by, "ship", time.Millisecond))
	})
}

// A filter may choose more than the first messages that are counted: it is not known how many.
func TestMessages_ThatAreTooManyToCount(t *testing.T) {
	t.Parallel()
	all, some := ops.Messages{Count: 5}, ops.Messages{Count: 5, Filter: delayqueue.Filter{Cause: "no mail"}}
	require.NoError(t, some.Check(delayqueue.StateDead, 5, true))
	require.NoError(t, all.Check(delayqueue.StateDead, 5, false))
	require.ErrorIs(t, all.Check(delayqueue.StateDead, 6, false), ops.ErrChanged)
	require.ErrorIs(t, some.Check(delayqueue.StateDead, 5, false), ops.ErrInvalidArgument)
}

// What died after it was counted is neither redriven nor purged, though it matches.
func TestOperator_LeavesAloneWhatDiedAfterIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		d.kill(t, delayqueue.Job{Name: "mail"}, delayqueue.Job{Name: "mail"})
		var once sync.Once
		looks := atomic.Int32{}
		d.rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) && looks.Add(1) > 4 { // it was counted
				once.Do(func() {
					time.Sleep(2 * time.Millisecond) // of another millisecond
					d.kill(t, delayqueue.Job{Name: "mail"})
				})
			}
		}))
		n, err := d.Purge(ctx, by, ops.Messages{Queue: "ship", Count: 2})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		once.Do(func() { t.Error("nothing died meanwhile") })
		s, err := d.queue.Stats(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Dead)
	})
}

func TestOperator_ForgetsARequest(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		sealed := idempotency.WithEncryption(idempotency.Keyring{Current: "a", Keys: map[string][]byte{"a": []byte("thirty-two bytes that do not lie")}})
		store, err := idempotency.New(d.rdb, idempotency.WithPrefix(env.Prefix), sealed)
		require.NoError(t, err)
		r := ops.Request{Route: "POST /pay", Principal: "user-7", Key: "client-secret"}
		w := idempotency.Work{Name: idempotency.NameOf(r.Route, r.Principal, r.Key), Fingerprint: "f"}
		requireState := func(want string) {
			t.Helper()
			record, err := d.Lookup(ctx, r)
			require.NoError(t, err)
			require.Equal(t, want, ops.RecordState(record))
		}
		requireState("unknown")
		require.NoError(t, store.Parked(ctx, w, core.Ticket{ID: "t", Queue: "ship", ExpiresAt: time.Now().Add(time.Minute)}))
		requireState("parked")
		_, err = store.Begin(ctx, w, 7)
		require.NoError(t, err)
		requireState("begun")
		require.NoError(t, store.Finish(ctx, w, 7, []byte("paid")))
		requireState("done")
		var changed *ops.ChangedError
		require.ErrorAs(t, d.Forget(ctx, by, r, "begun"), &changed)
		require.Equal(t, "done", changed.Now)
		require.ErrorIs(t, d.Forget(ctx, by, r, "unknown"), ops.ErrInvalidArgument)
		require.NoError(t, d.Forget(ctx, by, r, "done"))
		requireState("unknown")
		require.ErrorAs(t, d.Forget(ctx, by, r, "done"), &changed)
		require.Equal(t, "unknown", changed.Now)
		text := fmt.Sprint(d.latest(t), d.log)
		require.Contains(t, text, "POST /pay")
		require.NotContains(t, text, "client-secret")
		require.NotContains(t, text, "user-7")
	})
}

// A request that is answered just before it is forgotten is not run again.
func TestOperator_ForgetsNothingThatChangesMeanwhile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		store, err := idempotency.New(env.Client(t), idempotency.WithPrefix(env.Prefix))
		require.NoError(t, err)
		r := ops.Request{Route: "POST /pay", Principal: "user-7", Key: "i"}
		w := idempotency.Work{Name: idempotency.NameOf(r.Route, r.Principal, r.Key), Fingerprint: "f"}
		_, err = store.Begin(ctx, w, 7)
		require.NoError(t, err)
		var once sync.Once
		d.rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) || cmd.Name() == "del" {
				once.Do(func() { assert.NoError(t, store.Finish(ctx, w, 7, []byte("paid"))) })
			}
		}))
		var changed *ops.ChangedError
		require.ErrorAs(t, d.Forget(ctx, by, r, "begun"), &changed)
		require.Equal(t, "done", changed.Now)
		record, err := d.Lookup(ctx, r)
		require.NoError(t, err)
		require.Equal(t, "done", ops.RecordState(record))
		require.NoError(t, d.Forget(ctx, by, r, "done"))
	})
}

func TestAudit_ListsTheLatestFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, ctx := newDesk(t, env), t.Context()
		var writers sync.WaitGroup
		for range 5 {
			writers.Go(func() {
				for range 20 {
					c := ops.Change{Action: ops.ActionPause, Queue: "ship", Who: "ann", Why: strings.Repeat("y", 600)}
					if assert.NoError(t, d.audit.Record(ctx, &c)) {
						c.Outcome = "ended " + c.ID
						d.audit.Done(ctx, &c)
					}
				}
			})
		}
		writers.Wait()
		under := ops.Change{Action: ops.ActionUnlock, Key: "k", Who: "bob", Why: "now"}
		require.NoError(t, d.audit.Record(ctx, &under))
		for range 3 { // outcomes of changes that were cut off
			require.NoError(t, d.rdb.XAdd(ctx, &redis.XAddArgs{Stream: env.Prefix + ":ops:audit", Values: []string{"of", "1-1", "outcome", "x"}}).Err())
		}
		for _, n := range []int{1, 2, 7, 100, 1000} {
			all, err := d.audit.List(ctx, n)
			require.NoError(t, err)
			require.Len(t, all, min(n, 101))
			require.Equal(t, under, all[0])
			for i, c := range all[1:] {
				require.Equal(t, "ended "+c.ID, c.Outcome)
				require.Len(t, c.Why, 512)
				require.False(t, c.At.After(all[i].At))
			}
		}
		for _, n := range []int{0, 1001} {
			_, err := d.audit.List(ctx, n)
			require.ErrorIs(t, err, ops.ErrInvalidArgument)
		}
		require.Equal(t, int64(-1), d.rdb.PTTL(ctx, env.Prefix+":ops:audit").Val().Nanoseconds())
	})
}

func TestAudit_IsBounded(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t) // the embedded one takes a second for each thousand
	d, ctx := newDesk(t, env), t.Context()
	for range 30 {
		pipe := d.rdb.Pipeline()
		for range 500 {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: env.Prefix + ":ops:audit", Values: []string{"of", "1-1"}})
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
	}
	c := ops.Change{Action: ops.ActionPause, Queue: "ship", Who: "ann", Why: "y"}
	require.NoError(t, d.audit.Record(ctx, &c))
	n := d.rdb.XLen(ctx, env.Prefix+":ops:audit").Val()
	require.GreaterOrEqual(t, n, int64(10_000))
	require.Less(t, n, int64(10_200))
	all, err := d.audit.List(ctx, 5)
	require.NoError(t, err)
	require.Equal(t, []ops.Change{c}, all)
}

func TestOperator_NeedsOnePrefix(t *testing.T) {
	env := redistest.Embedded(t)
	d := newDesk(t, env)
	other, err := ops.NewAudit(d.rdb, "", nil)
	require.NoError(t, err)
	_, err = ops.NewOperator(d.locker, other)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = ops.NewOperator(nil, d.audit)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = ops.NewAudit(nil, "", nil)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = ops.NewAudit(d.rdb, "{}", nil)
	require.ErrorIs(t, err, core.ErrInvalidOption)
}

func TestACL_TheSmallestRightsOfAnAudit(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := redistest.Rights(t, "ops.Audit")
	redistest.AddUser(t, admin, "audit", rights)
	audit, err := ops.NewAudit(as(t, admin, "audit"), "", nil)
	require.NoError(t, err)
	c := ops.Change{Action: ops.ActionPause, Queue: "ship", Who: "ann", Why: "y"}
	require.NoError(t, audit.Record(t.Context(), &c))
	audit.Done(t.Context(), &c)
	_, err = audit.List(t.Context(), 1)
	require.NoError(t, err)
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
	redistest.RequireUsed(t, admin, rights, nil)
}
