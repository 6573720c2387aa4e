package conformance

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// kinds are those that an outcome can be of.
var kinds = []httplock.OutcomeKind{
	httplock.OutcomeRan, httplock.OutcomePassed, httplock.OutcomePanicked, httplock.OutcomeLost, httplock.OutcomeConflict,
	httplock.OutcomeParked, httplock.OutcomeDuplicate, httplock.OutcomeShed, httplock.OutcomeCancelled, httplock.OutcomeDeadline,
	httplock.OutcomeUnavailable, httplock.OutcomeRefused, httplock.OutcomeError,
}

// ledger is an Observer that checks that each request has one outcome.
type ledger struct {
	told chan httplock.Outcome
	seen map[httplock.OutcomeKind]bool
}

// keepLedger begins a ledger. When the servers that were started after it are closed, it must have nothing left.
func (t *fixture) keepLedger() *ledger {
	l := &ledger{told: make(chan httplock.Outcome, 1000), seen: map[httplock.OutcomeKind]bool{}}
	t.Cleanup(func() {
		for len(l.told) > 0 {
			assert.Fail(t, "an outcome more than there were requests", "%+v", <-l.told)
		}
	})
	return l
}

// OnOutcome implements httplock.Observer.
func (l *ledger) OnOutcome(_ context.Context, e httplock.Outcome) { l.told <- e }

func (l *ledger) option() httplock.Option { return httplock.WithObserver(l) }

// anyStatus is one that frameworks do not agree about: some answer after the guard.
const anyStatus = -1

// requireOne wants one outcome, of this kind, and that there is no other yet.
func (l *ledger) requireOne(t *fixture, what string, kind httplock.OutcomeKind, status int) httplock.Outcome {
	t.Helper()
	e := await(t, l.told, what+": an outcome")
	l.seen[kind] = true
	require.Equal(t, kind, e.Kind, "%s: %+v", what, e)
	require.True(t, status == e.Status || status == anyStatus, "%s: want the status %d, by Exchange.Status: %+v", what, status, e)
	require.Empty(t, l.told, "%s: an outcome more", what)
	require.Positive(t, e.Took, what)
	require.Contains(t, e.Name, "/orders/", what)
	require.NotContains(t, e.Name, testbed.Secret, what)
	ran := kind == httplock.OutcomeRan || kind == httplock.OutcomePassed || kind == httplock.OutcomePanicked || kind == httplock.OutcomeDuplicate
	require.Equal(t, ran, e.Err == nil, "%s: %v", what, e.Err)
	return e
}

// oneOutcome: whatever becomes of a request, the observer is told once.
func oneOutcome(t *fixture) {
	l := t.keepLedger()
	t.outcomesOfRefusals(l)
	t.outcomesOfHandlers(l)
	t.outcomesOfWaiting(l)
	t.outcomesOfDuplicates(l)
	t.outcomesOfReplays(l)
	for _, kind := range kinds {
		require.True(t, l.seen[kind], "nothing has the outcome %q", kind)
	}
}

func (t *fixture) outcomesOfRefusals(l *ledger) {
	b := t.setUp(shortLease())
	refused := t.refusing(b)
	for _, x := range refusals(t.store(b)) {
		if x.kind == "" {
			continue
		}
		release := func() {}
		if !x.lost {
			release = b.Hold(t)
		}
		x.opts = append(x.opts, l.option())
		resp := refused(t.adapter, x)
		release()
		e := l.requireOne(t, x.name, x.kind, resp.Status)
		if x.key == nil && x.kind != httplock.OutcomeError && x.kind != httplock.OutcomeRefused {
			require.Equal(t, testbed.OrderKey, e.Key, x.name)
		}
		if x.kind == httplock.OutcomeParked {
			require.Equal(t, testbed.TicketID, e.Ticket, x.name)
		}
		require.False(t, e.Replay)
	}
}

// outcomesOfHandlers is long since most of it is a table.
func (t *fixture) outcomesOfHandlers(l *ledger) {
	b := t.setUp(shortLease())
	answering := func(status int, body string) Handler {
		return func(w http.ResponseWriter, _ *http.Request) error {
			if status != 0 {
				w.WriteHeader(status)
			}
			_, err := io.WriteString(w, body)
			return err
		}
	}
	type request struct {
		name    string
		handler Handler
		chain   []Step
		method  string // empty: POST
		kind    httplock.OutcomeKind
		status  int // what is told, and answered if there is one
	}
	all := lock(b, nil, l.option())
	noKey := all
	noKey.Key = func(*http.Request) (string, error) { return "", httplock.NoKey }
	panics := all
	panics.Key = func(*http.Request) (string, error) { panic("mine") }
	requests := []request{
		{name: "created", handler: answering(201, "made"), kind: httplock.OutcomeRan, status: 201},
		{name: "a status alone", handler: answering(204, ""), kind: httplock.OutcomeRan, status: 204},
		{name: "a body alone", handler: answering(0, "ok"), kind: httplock.OutcomeRan, status: 200},
		{name: "nothing", handler: func(http.ResponseWriter, *http.Request) error { return nil }, kind: httplock.OutcomeRan, status: 200},
		{name: "the client's fault", handler: answering(404, ""), kind: httplock.OutcomeRan, status: 404},
		{name: "a panic inside", handler: panicking("boom"), chain: []Step{all, Recovery{}}, kind: httplock.OutcomeRan, status: anyStatus},
		{name: "a panic", handler: panicking("boom"), chain: []Step{Recovery{}, all}, kind: httplock.OutcomePanicked},
		{name: "a panic of the key function", handler: t.mustNotRun, chain: []Step{Recovery{}, panics}, kind: httplock.OutcomePanicked},
		{name: "a safe method", handler: answering(203, "ok"), method: http.MethodGet, kind: httplock.OutcomePassed, status: 203},
		{name: "a safe method's panic", handler: panicking("boom"), chain: []Step{Recovery{}, all}, method: http.MethodGet, kind: httplock.OutcomePanicked},
		{
			name: "Skip", handler: ok, chain: []Step{lock(b, nil, l.option(), httplock.WithSkip(func(*http.Request) bool { return true }))},
			kind: httplock.OutcomePassed, status: 200,
		},
		{name: "NoKey", handler: answering(203, "ok"), chain: []Step{noKey}, kind: httplock.OutcomePassed, status: 203},
		{name: "lost, and answered", handler: func(w http.ResponseWriter, r *http.Request) error {
			w.WriteHeader(http.StatusCreated)
			_, err := io.WriteString(w, "made")
			t.loseLease(b, r)
			return err
		}, kind: httplock.OutcomeLost, status: 201},
	}
	if _, lacks := t.adapter.Lacks[HandlerErrors]; !lacks {
		requests = append(requests, request{
			name: "an error", handler: func(http.ResponseWriter, *http.Request) error { return t.adapter.Error(http.StatusTeapot) },
			kind: httplock.OutcomeRan, status: 0,
		})
	}
	for _, x := range requests {
		if x.chain == nil {
			x.chain = []Step{all}
		}
		if x.method == "" {
			x.method = http.MethodPost
		}
		s := t.start(t.adapter.New(App{Routes: []Route{order(x.method, x.handler, x.chain...)}}), t.notCaught)
		resp := t.send(s, x.method, testbed.OrderPath, "")
		if x.status > 0 {
			require.Equal(t, x.status, resp.Status, x.name)
		}
		l.requireOne(t, x.name, x.kind, x.status)
		b.RequireFree(t)
	}
}

func (t *fixture) outcomesOfWaiting(l *ledger) {
	b := t.setUp()
	s := t.serve(orders(ok, lock(b, retry.Policy{MaxWait: time.Minute}, l.option())))
	t.onConflict(b, b.Hold(t))
	t.requireOK(t.post(s, "x"))
	l.requireOne(t, "waited", httplock.OutcomeRan, http.StatusOK)

	release := b.Hold(t)
	ctx, leave := context.WithCancel(t.Context())
	t.onConflict(b, leave)
	require.ErrorIs(t, await(t, t.sending(ctx, s, "x"), "the client leaves"), context.Canceled)
	l.requireOne(t, "cancelled", httplock.OutcomeCancelled, 499)
	release()
	b.RequireFree(t)

	late := t.serve(orders(t.mustNotRun, lock(b, nil, l.option(), httplock.WithBodyTimeout(shortBodyTime))))
	slow := t.slowly(late, text(100), 1, true)
	require.Equal(t, http.StatusRequestTimeout, await(t, slow.answer, "the slow request is refused").Status)
	l.requireOne(t, "slow body", httplock.OutcomeRefused, http.StatusRequestTimeout)
	slow.finish()

	// Of nested guards each tells its own.
	inner := Lock{b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "inner", nil }, []httplock.Option{l.option()}}
	s = t.serve(orders(t.mustNotRun, lock(b, nil, l.option()), inner))
	b.HoldKey(t, "inner")
	require.Equal(t, http.StatusConflict, t.post(s, "").Status)
	first, second := await(t, l.told, "the inner guard's"), await(t, l.told, "the outer guard's")
	require.Equal(t, [2]httplock.OutcomeKind{httplock.OutcomeConflict, httplock.OutcomeRan}, [2]httplock.OutcomeKind{first.Kind, second.Kind})
	require.Equal(t, [2]string{"inner", testbed.OrderKey}, [2]string{first.Key, second.Key})
}

func (t *fixture) outcomesOfDuplicates(l *ledger) {
	b := t.setUp()
	large := func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, text(100))
		return err
	}
	for name, most := range map[string]int{"kept": 100, "not kept": 99} {
		x := t.remembering(b, nil, httplock.KeepResponseBody(most))
		x.Options = append(x.Options, l.option())
		s := t.serve(orders(large, x))
		key := `"` + name + `"`
		require.Equal(t, http.StatusCreated, t.keyed(s, key, "{}").Status)
		l.requireOne(t, name+", the first", httplock.OutcomeRan, http.StatusCreated)
		for _, release := range []func(){b.Hold(t), func() {}} {
			resp := t.keyed(s, key, "{}")
			require.Equal(t, most == 100, resp.Status == http.StatusCreated, "%s: %d", name, resp.Status)
			e := await(t, l.told, "an outcome")
			require.Equal(t, httplock.OutcomeDuplicate, e.Kind)
			require.Equal(t, resp.Status, e.Status)
			l.seen[e.Kind] = true
			release()
		}
		require.Equal(t, http.StatusUnprocessableEntity, t.keyed(s, key, "{2}").Status)
		l.requireOne(t, name+", another payload", httplock.OutcomeRefused, http.StatusUnprocessableEntity)
	}
}

func (t *fixture) outcomesOfReplays(l *ledger) {
	d := t.openParking(func(w http.ResponseWriter, r *http.Request) error {
		w.WriteHeader(http.StatusTeapot)
		return nil
	}, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		x := t.remembering(b, delayqueue.Policy(q))
		x.Options = append(x.Options, l.option())
		return x, nil
	}, delayqueue.WithReservationWindow(0))
	release := d.Hold(t)
	ticket := strings.TrimPrefix(testbed.RequireParked(t, t.keyed(d.site, "k", "{}")), "/tickets/")
	e := l.requireOne(t, "parked", httplock.OutcomeParked, http.StatusAccepted)
	require.Equal(t, ticket, e.Ticket)
	require.Equal(t, http.StatusAccepted, t.keyed(d.site, "k", "{}").Status)
	e = l.requireOne(t, "parked again", httplock.OutcomeDuplicate, http.StatusAccepted)
	require.Equal(t, ticket, e.Ticket)
	require.False(t, e.Replay)
	t.work(d)
	release()
	e = l.requireOne(t, "replayed", httplock.OutcomeRan, http.StatusTeapot)
	require.Equal(t, ticket, e.Ticket)
	require.True(t, e.Replay)
}

// panickingObserver is told, and panics.
type panickingObserver struct{ told chan httplock.Outcome }

func (o panickingObserver) OnOutcome(_ context.Context, e httplock.Outcome) {
	o.told <- e
	panic(errors.New("the observer's"))
}

// observerPanics: no request suffers for it.
func observerPanics(t *fixture) {
	b := t.setUp()
	said := &testbed.Log{}
	o := panickingObserver{make(chan httplock.Outcome, 10)}
	opts := []httplock.Option{httplock.WithObserver(o), httplock.WithLogger(said.Logger())}
	s := t.serve(orders(ok, lock(b, nil, opts...)))
	t.requireOK(t.post(s, ""))
	await(t, o.told, "an outcome")
	b.RequireFree(t)
	release := b.Hold(t)
	testbed.RequireProblem(t, t.post(s, ""), http.StatusConflict, "conflict", true)
	await(t, o.told, "an outcome")
	release()
	t.eventually(func() bool { return strings.Count(said.String(), "the observer panicked") == 2 }, "it is logged")

	// The panic of a handler is the one that passes through.
	seen := make(chan spy, 1)
	s = t.start(t.adapter.New(orders(panicking("boom"), Recovery{}, spying(seen), lock(b, nil, opts...))), t.notCaught)
	require.Equal(t, http.StatusInternalServerError, t.post(s, "").Status)
	require.Equal(t, "boom", await(t, seen, "the middleware in front").recovered)
}
