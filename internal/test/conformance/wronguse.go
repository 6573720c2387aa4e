package conformance

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// selfCalls: a handler that asks its own service for its own key is told so, and one that asks for another key is not
// held up.
func selfCalls(t *fixture) {
	b, said := t.setUp(), &testbed.Log{}
	var s *site
	answers := make(chan testbed.Answer, 1)
	outer := func(w http.ResponseWriter, r *http.Request) error {
		path := r.URL.Query().Get("ask")
		if path == "" {
			return ok(w, r)
		}
		client := *s.client
		if r.URL.Query().Get("marked") != "" {
			client.Transport = &httplock.Transport{Base: client.Transport}
		}
		inner := t.request(s, http.MethodPost, path, "").WithContext(r.Context())
		if key := r.URL.Query().Get("key"); key != "" {
			inner.Header.Set("Idempotency-Key", key)
		}
		answer, err := testbed.Send(&client, inner)
		assert.NoError(t, err)
		assert.Empty(t, inner.Header.Get("Perkey-Trail"), "the sender's request is not changed")
		answers <- answer
		return ok(w, r)
	}
	waits := lock(b, retry.Policy{MaxWait: 100 * time.Millisecond}, httplock.WithLogger(said.Logger()))
	s = t.serve(orders(outer, waits))
	ask := func(path, query string) testbed.Answer {
		t.requireOK(t.send(s, http.MethodPost, testbed.OrderPath+"?ask="+path+query, ""))
		return await(t, answers, "the answer to the handler")
	}
	testbed.RequireProblem(t, ask(testbed.OrderPath, ""), http.StatusConflict, "conflict", true)
	require.Empty(t, said.String())
	for range 2 {
		testbed.RequireProblem(t, ask(testbed.OrderPath, "&marked=1"), http.StatusLoopDetected, "self-call", false)
	}
	require.Equal(t, 1, strings.Count(said.String(), "would wait for itself"))
	t.requireOK(ask("/orders/other", "&marked=1"))

	// What shares the key does not wait for its sender, nor does what has an answer already.
	waiting := s
	s = t.serve(orders(outer, Lock{b.Locker.Guard(core.RejectConflicts, core.Counted(2)), orderKey, nil}))
	t.requireOK(ask(testbed.OrderPath, "&marked=1"))
	s = t.serve(orders(outer, t.remembering(b, nil)))
	t.requireOK(t.keyed(s, "k", ""))
	answer := ask(testbed.OrderPath, "&marked=1&key=k")
	t.requireOK(answer)
	require.Equal(t, "true", answer.Header.Get("Idempotent-Replayed"))
	s = waiting

	b.HoldKey(t, "order:held") // by nobody on the trail
	testbed.RequireProblem(t, ask("/orders/held", "&marked=1"), http.StatusConflict, "conflict", true)
	r := t.request(s, http.MethodPost, "/orders/held", "")
	r.Header.Set("Perkey-Trail", "forged")
	resp := t.do(s, r)
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
	b.RequireFree(t)
}

// timeoutInFront: a handler that ignores its ctx keeps its key after its client was answered.
func timeoutInFront(t *fixture) {
	b, l := t.setUp(), t.keepLedger()
	release, returned := make(chan struct{}), make(chan error, 1)
	app := orders(func(w http.ResponseWriter, r *http.Request) error {
		switch r.URL.Query().Get("be") {
		case "slow":
			t.pause(release)
			assert.ErrorIs(t, r.Context().Err(), context.DeadlineExceeded)
			err := ok(w, r)
			returned <- err
			return err
		case "begun":
			assert.NoError(t, ok(w, r))
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-r.Context().Done()
			return nil
		}
		w.Header().Set("X-Handlers", "1")
		return ok(w, r)
	}, lock(b, nil, l.option()))
	engine := t.adapter.New(app)
	s := t.start(httplock.Timeout(500*time.Millisecond)(engine), t.silent)

	resp := t.post(s, "")
	t.requireOK(resp)
	require.Equal(t, "1", resp.Header.Get("X-Handlers"))
	l.requireOne(t, "in time", httplock.OutcomeRan, http.StatusOK)
	t.requireOK(t.send(s, http.MethodPost, testbed.OrderPath+"?be=begun", ""))
	l.requireOne(t, "begun in time", httplock.OutcomeRan, http.StatusOK)
	testbed.RequireProblem(t, t.send(s, http.MethodPost, testbed.OrderPath+"?be=slow", ""), http.StatusServiceUnavailable, "handler-timeout", false)
	b.AssertHeld(t)
	testbed.RequireProblem(t, t.post(s, ""), http.StatusConflict, "conflict", true)
	l.requireOne(t, "held", httplock.OutcomeConflict, http.StatusConflict)
	close(release)
	require.ErrorIs(t, await(t, returned, "the handler returns"), http.ErrHandlerTimeout)
	l.requireOne(t, "late", httplock.OutcomeRan, http.StatusServiceUnavailable)
	b.RequireFree(t)
	t.requireOK(t.post(s, ""))
	l.requireOne(t, "the next", httplock.OutcomeRan, http.StatusOK)
}
