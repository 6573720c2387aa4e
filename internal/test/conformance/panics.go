package conformance

import (
	"errors"
	"io"
	"net/http"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// panicValues are what handlers panic with. The last one is told apart by
// net/http's server, and by some frameworks' recovery.
var panicValues = []any{"boom", errors.New("boom"), http.ErrAbortHandler}

func panicking(value any) Handler {
	return func(http.ResponseWriter, *http.Request) error { panic(value) }
}

// notCaught is a server's log without panics.
func (t *fixture) notCaught(said string) { assert.NotContains(t, said, "panic serving") }

// freed wants the key to be free before what is in front answers.
func (t *fixture) freed(b *testbed.Fixture) Middleware {
	return func(c Context) error {
		defer b.RequireFree(t)
		return c.Next()
	}
}

func recoveryOutside(t *fixture) {
	b := t.setUp()
	for _, value := range panicValues {
		seen := make(chan spy, 1)
		engine := t.adapter.New(orders(panicking(value), Recovery{}, spying(seen), t.freed(b), lock(b, nil)))
		s := t.start(engine, t.notCaught)
		// What recovery makes of http.ErrAbortHandler is the framework's business.
		resp, err := testbed.Send(s.client, t.request(s, http.MethodPost, testbed.OrderPath, ""))
		if value != http.ErrAbortHandler { //nolint:errorlint // the very value
			require.NoError(t, err)
			require.Equal(t, http.StatusInternalServerError, resp.Status)
		}
		passed := await(t, seen, "the middleware in front")
		require.Equal(t, value, passed.recovered, "the panic passes through as it was")
		passed.requireRestored(t)
	}
}

func recoveryInside(t *fixture) {
	b := t.setUp()
	for _, value := range panicValues {
		seen := make(chan spy, 1)
		engine := t.adapter.New(orders(panicking(value), spying(seen), lock(b, nil), Recovery{}))
		s := t.start(engine, t.notCaught)
		resp, err := testbed.Send(s.client, t.request(s, http.MethodPost, testbed.OrderPath, ""))
		if value != http.ErrAbortHandler { //nolint:errorlint // the very value
			require.NoError(t, err)
			require.Equal(t, http.StatusInternalServerError, resp.Status)
			require.Nil(t, await(t, seen, "the middleware in front").recovered)
		}
		b.RequireFree(t)
	}
}

func noRecovery(t *fixture) {
	b := t.setUp()
	for _, value := range panicValues {
		s := t.start(t.adapter.New(orders(panicking(value), lock(b, nil))), func(said string) {
			if value == http.ErrAbortHandler { //nolint:errorlint // the very value
				assert.Empty(t, said, "the server knows this panic, and says nothing")
			} else {
				assert.Contains(t, said, "panic serving")
			}
		})
		_, err := testbed.Send(s.client, t.request(s, http.MethodPost, testbed.OrderPath, ""))
		require.ErrorIs(t, err, io.EOF, "the connection ends")
		b.RequireFree(t)
	}
}

func panicOfKey(t *fixture) {
	b := t.setUp()
	seen := make(chan spy, 1)
	l := Lock{b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { panic("mine") }, nil}
	s := t.start(t.adapter.New(orders(t.mustNotRun, Recovery{}, spying(seen), l)), t.notCaught)
	require.Equal(t, http.StatusInternalServerError, t.post(s, "").Status)
	passed := await(t, seen, "the middleware in front")
	require.Equal(t, "mine", passed.recovered)
	passed.requireRestored(t)
}

// handlerError: what a handler returns is not for the guard, even if it looks like an outcome of one.
func handlerError(t *fixture) {
	b := t.setUp(shortLease())
	parking := &testbed.Parking{}
	for _, theirs := range []error{errors.New("theirs"), &core.ConflictError{Key: "theirs"}, core.ErrUnavailable} {
		seen := make(chan spy, 1)
		s := t.serve(orders(func(http.ResponseWriter, *http.Request) error { return theirs }, spying(seen), t.freed(b), lock(b, parking)))
		resp := t.post(s, "")
		require.Equal(t, http.StatusInternalServerError, resp.Status, "the framework's answer to an error")
		require.NotEqual(t, "application/problem+json", resp.Header.Get("Content-Type"))
		require.Equal(t, theirs, await(t, seen, "the middleware in front").err)
		require.Empty(t, parking.Parked())
	}
	// A lost lease is told all the same: nobody has answered yet.
	s := t.serve(orders(func(_ http.ResponseWriter, r *http.Request) error {
		t.loseLease(b, r)
		return errors.New("gave up")
	}, lock(b, nil)))
	testbed.RequireProblem(t, t.post(s, ""), http.StatusInternalServerError, "outcome-unknown", false)
}
