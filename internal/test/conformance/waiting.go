package conformance

import (
	"context"
	"io"
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

// readTwice reads the body, and checks that it can be read once.
func readTwice(t *fixture, r *http.Request) string {
	got, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	again, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	assert.Empty(t, again, "a body that was read is at its end")
	assert.NoError(t, r.Body.Close())
	return string(got)
}

func waits(t *fixture) {
	const more = 10
	b := t.setUp()
	inside, entered, waiting := make(chan struct{}, 1), make(chan struct{}, more+2), make(chan struct{})
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		select {
		case inside <- struct{}{}:
			entered <- struct{}{}
			t.pause(waiting)
			<-inside
		default:
			t.Error("two handlers inside")
		}
		return ok(w, r)
	}, lock(b, retry.Policy{MaxWait: time.Minute})))
	first := t.sending(t.Context(), s, "")
	await(t, entered, "the handler runs")
	second := t.sending(t.Context(), s, "")
	await(t, b.Conflicts, "the second request waits")
	close(waiting)
	require.NoError(t, await(t, first, "the response"))
	require.NoError(t, await(t, second, "the response"))
	await(t, entered, "the second request runs")

	answers := t.atOnce(s, more, t.posts(s, ""))
	for range more {
		t.requireOK(await(t, answers, "the response"))
	}
	b.RequireFree(t)
}

func bodyAfterWaiting(t *fixture) {
	b := t.setUp()
	for name, test := range map[string]struct{ size, most int }{
		"no body":      {0, 1 << 20},
		"in memory":    {100_000, 1 << 20},
		"at the cap":   {1000, 1000},
		"over the cap": {100_000, 1000},
		"one over":     {1001, 1000},
		"asks first":   {100, 1 << 20},
	} {
		for _, chunked := range []bool{false, true} {
			body := text(test.size)
			s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
				assert.Equal(t, body, readTwice(t, r), name)
				return ok(w, r)
			}, lock(b, retry.Policy{MaxWait: time.Minute}, httplock.WithMaxBody(int64(test.most)))))
			r := t.request(s, http.MethodPost, testbed.OrderPath, body)
			if chunked {
				r.ContentLength = -1
			}
			if name == "asks first" {
				r.Header.Set("Expect", "100-continue")
			}
			t.onConflict(b, b.Hold(t))
			t.requireOK(t.do(s, r))
		}
	}
}

func bodyReplaced(t *fixture) {
	b := t.setUp()
	key := func(r *http.Request) (string, error) {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			return "", err
		}
		r.Body = io.NopCloser(strings.NewReader(string(content) + "!"))
		return orderKey(r)
	}
	parking := &testbed.Parking{}
	for _, policy := range []core.ConflictPolicy{retry.Policy{MaxWait: time.Minute}, parking} {
		l := lock(b, policy)
		l.Key = key
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
			assert.Equal(t, "hello!", readTwice(t, r))
			return ok(w, r)
		}, l))
		t.requireOK(t.post(s, "hello"))
		release := b.Hold(t)
		if policy == parking {
			require.Equal(t, http.StatusAccepted, t.post(s, "hello").Status)
			parked := parking.Parked()
			require.Len(t, parked, 1)
			require.True(t, strings.HasSuffix(string(parked[0]), "\nhello!"), "what is parked is what the handler would have read")
			release()
			continue
		}
		t.onConflict(b, release)
		t.requireOK(t.post(s, "hello"))
	}
}

// goneWhileWaiting: net/http notices that a client left only once the body was
// read, which here nobody but the guard can have done.
func goneWhileWaiting(t *fixture) {
	b := t.setUp()
	for name, body := range map[string]string{"no body": "", "unread body": text(500_000)} {
		release := b.Hold(t)
		seen := make(chan spy, 1)
		s := t.serve(orders(t.mustNotRun, spying(seen), lock(b, testbed.Patient{})))
		ctx, leave := context.WithCancel(t.Context())
		t.onConflict(b, leave)
		require.ErrorIs(t, await(t, t.sending(ctx, s, body), "the client leaves"), context.Canceled)
		left := await(t, seen, name+": the waiter leaves while the key is held")
		require.ErrorIs(t, left.ctxErr, context.Canceled)
		release()
		b.RequireFree(t)
	}
}

func goneMidHandler(t *fixture) {
	b := t.setUp()
	seen, ran := make(chan spy, 1), make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s := t.serve(orders(func(_ http.ResponseWriter, r *http.Request) error {
		defer close(ran)
		assert.Equal(t, "body", readTwice(t, r)) // or net/http does not see that the client left
		leave()
		t.pause(r.Context().Done())
		assert.ErrorIs(t, context.Cause(r.Context()), context.Canceled)
		for range 5 {
			b.AssertHeld(t)
			time.Sleep(5 * time.Millisecond) // a guard that lets go too early does so now
		}
		return nil
	}, spying(seen), lock(b, nil)))
	require.ErrorIs(t, await(t, t.sending(ctx, s, "body"), "the client leaves"), context.Canceled)
	await(t, ran, "the handler returns")
	await(t, seen, "the guard returns")
	b.RequireFree(t)
}
