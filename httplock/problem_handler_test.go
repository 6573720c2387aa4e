package httplock_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// teapot answers every problem in a way of its own.
func teapot(seen chan *httplock.Problem) httplock.ProblemHandler {
	return func(w http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
		seen <- p
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, p.Error())
	}
}

func TestProblem_IsHandedToItsHandler(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env, core.WithTTL(time.Second))
		conflicts, others := make(chan *httplock.Problem, 1), make(chan *httplock.Problem, 1)
		onConflict := httplock.WithConflictHandler(teapot(conflicts))
		onError := httplock.WithErrorHandler(teapot(others))
		guard := b.Locker.Guard(core.RejectConflicts)
		bad := func(*http.Request) (string, error) { return "", httplock.BadKey(errors.New(testbed.Secret)) }
		lose := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("X-Of-Handler", "stays")
			b.LoseLeases(t)
			<-r.Context().Done()
		}

		release := b.Hold(t)
		for _, h := range []http.Handler{
			guarded(guard, mustNotRun(t), onConflict, onError), guarded(guard, mustNotRun(t), onConflict), guarded(guard, mustNotRun(t), onError),
		} {
			resp := testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "")
			require.Equal(t, http.StatusTeapot, resp.Status)
			require.Equal(t, "httplock: status 409: Another request is being worked on", resp.Body)
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			var p *httplock.Problem
			select {
			case p = <-conflicts:
			case p = <-others:
			}
			require.Equal(t, http.StatusConflict, p.Status)
			require.ErrorIs(t, p, core.ErrConflict)
			require.Positive(t, p.RetryAfter)
			require.Nil(t, p.Framework)
		}
		release()

		h := httplock.PerKey(guard, bad, onConflict, onError)(mustNotRun(t))
		require.Equal(t, http.StatusTeapot, testbed.Call(t, h, http.MethodPost, "/", "").Status)
		p := <-others
		require.Equal(t, http.StatusBadRequest, p.Status)
		require.ErrorContains(t, p.Err, testbed.Secret)
		require.NotContains(t, p.Error(), testbed.Secret)
		require.Zero(t, p.RetryAfter)
		testbed.RequireProblem(t, testbed.Call(t, httplock.PerKey(guard, bad, onConflict)(mustNotRun(t)), http.MethodPost, "/", ""),
			http.StatusBadRequest, "bad-key", false)

		resp := testbed.Call(t, guarded(guard, lose, onConflict, onError), http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusTeapot, resp.Status)
		require.NotContains(t, resp.Header, "Content-Length", "that was of the handler's response")
		require.Equal(t, "stays", resp.Header.Get("X-Of-Handler"))
		p = <-others
		require.Equal(t, http.StatusInternalServerError, p.Status)
		require.ErrorIs(t, p, core.ErrLeaseLost)
		b.RequireFree(t)
	})
}

func TestProblem_HandlersThatWriteNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	silent := func(w http.ResponseWriter, _ *http.Request, _ *httplock.Problem) { w.Header().Set("X-Seen", "1") }
	resp := testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithErrorHandler(silent)), http.MethodPost, testbed.OrderPath, "")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
	require.Equal(t, "1", resp.Header.Get("X-Seen"))

	partly := func(w http.ResponseWriter, r *http.Request, p *httplock.Problem) {
		if p.Status == http.StatusConflict {
			p.Write(w, r)
		}
	}
	resp = testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithErrorHandler(partly)), http.MethodPost, testbed.OrderPath, "")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
}

func TestReceipts_AreNoProblem(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	never := httplock.WithErrorHandler(func(http.ResponseWriter, *http.Request, *httplock.Problem) { t.Error("called") })
	resp := testbed.Call(t, guarded(b.Locker.Guard(&testbed.Parking{}), mustNotRun(t), never), http.MethodPost, testbed.OrderPath, "")
	require.Equal(t, http.StatusAccepted, resp.Status)
}

func TestProblem_AdaptersCanTakeTheProblem(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	m := newMiddleware(t, b.Locker.Guard(core.RejectConflicts))
	var problem *httplock.Problem
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tracked, status := httplock.Track(w, r)
		written := func() bool { return status() != 0 }
		ran := m.Serve(httplock.Exchange{
			Writer: tracked, Request: r, Written: written, Framework: "mine",
			Key:     func() (string, error) { return testbed.OrderKey, nil },
			Next:    func(*http.Request) { t.Error("it ran") },
			Problem: func(p *httplock.Problem) { problem = p },
		})
		assert.False(t, ran)
		assert.False(t, written())
		doc, err := json.Marshal(problem)
		assert.NoError(t, err)
		tracked.WriteHeader(problem.StatusCode())
		_, _ = tracked.Write(doc)
		assert.True(t, written())
	})
	resp := testbed.Call(t, h, http.MethodPost, "/", "")
	require.Equal(t, "mine", problem.Framework)
	require.Equal(t, http.StatusConflict, resp.Status)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, resp.Body, `problems.md#conflict"`)
	require.NotContains(t, resp.Body, testbed.Secret)

	ran := false
	m.Serve(httplock.Exchange{Request: testbed.Request(t, http.MethodPost, "/", ""), Skip: func() bool { return true }, Next: func(*http.Request) { ran = true }})
	require.True(t, ran, "the adapter lets it pass")
}
