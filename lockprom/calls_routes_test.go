package lockprom_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// routed is a request to a guarded route, and what comes of it.
type routed struct {
	kind    httplock.OutcomeKind
	status  int
	method  string // empty: POST
	policy  core.ConflictPolicy
	handler http.HandlerFunc // nil: the key is held, and it does not run
	key     error            // of the key function
	timeout time.Duration
	leaves  bool
	once    bool
}

// send sends a request, of which rival holds the key unless it has a handler.
func (c *calls) send(x routed, l, rival *core.Locker, store *idempotency.Store) {
	c.Helper()
	const path = "/law"
	key := func(*http.Request) (string, error) { return "route", x.key }
	opts := []httplock.Option{httplock.WithObserver(c.recorder.Requests(nil)), httplock.WithAnonymous(), httplock.WithLogger(quiet())}
	if x.once {
		opts = append(opts, httplock.WithIdempotency(store))
	}
	if x.policy == nil {
		x.policy = core.RejectConflicts
	}
	x.method = cmp.Or(x.method, http.MethodPost)
	if x.handler == nil {
		defer c.hold(rival, "route")()
	}
	mux := http.NewServeMux()
	mux.Handle(path, httplock.PerKey(l.Guard(x.policy), key, opts...)(x.handler))
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	if x.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, x.timeout)
		defer cancel()
	}
	if x.leaves {
		defer time.AfterFunc(30*time.Millisecond, cancel).Stop()
	}
	r := httptest.NewRequestWithContext(ctx, x.method, path, strings.NewReader("x"))
	if x.once {
		r.Header.Set("Idempotency-Key", "a")
	}
	w := httptest.NewRecorder()
	func() {
		defer func() { require.Equal(c, x.kind == httplock.OutcomePanicked, recover() != nil) }()
		mux.ServeHTTP(w, r)
	}()
	require.Equal(c, x.status, w.Code, x.kind)
	c.add("perkey_http_requests_total", x.method+" "+path, string(x.kind))
}

func (c *calls) ofRoutes() {
	l, rival := c.locker(), c.locker()
	store, err := idempotency.New(c.rdb, idempotency.WithPrefix(c.env.Prefix))
	require.NoError(c, err)
	ok := func(http.ResponseWriter, *http.Request) {}
	for _, x := range []routed{
		{kind: httplock.OutcomeRan, status: 200, handler: ok},
		{kind: httplock.OutcomePassed, status: 200, handler: ok, method: http.MethodGet},
		{kind: httplock.OutcomePanicked, status: 200, handler: func(http.ResponseWriter, *http.Request) { panic("oops") }},
		{kind: httplock.OutcomeLost, status: 500, handler: func(_ http.ResponseWriter, r *http.Request) {
			info, err := rival.Inspect(c.Context(), "route")
			require.NoError(c, err)
			_, err = rival.ForceRelease(c.Context(), "route", info.Holders[0].Fence)
			require.NoError(c, err)
			<-r.Context().Done()
		}},
		{kind: httplock.OutcomeConflict, status: 409},
		{kind: httplock.OutcomeParked, status: 202, policy: &testbed.Parking{}},
		{kind: httplock.OutcomeRan, status: 200, handler: ok, once: true},
		{kind: httplock.OutcomeDuplicate, status: 200, handler: ok, once: true},
		{kind: httplock.OutcomeShed, status: 503, policy: testbed.Failing{Err: delayqueue.ErrQueueFull}},
		{kind: httplock.OutcomeCancelled, status: 499, policy: testbed.Patient{}, leaves: true},
		{kind: httplock.OutcomeDeadline, status: 503, policy: testbed.Patient{}, timeout: 30 * time.Millisecond},
		{kind: httplock.OutcomeUnavailable, status: 503, policy: testbed.Failing{Err: core.ErrUnavailable}},
		{kind: httplock.OutcomeRefused, status: 400, handler: ok, key: httplock.BadKey(nil)},
		{kind: httplock.OutcomeError, status: 500, policy: testbed.Failing{Err: errors.New("oops")}},
	} {
		c.send(x, l, rival, store)
	}
}
