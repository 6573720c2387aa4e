package httplock_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

func TestMistakesAreErrorsAtConstruction(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	for name, build := range map[string]func() (*httplock.Middleware, error){
		"nil guard": func() (*httplock.Middleware, error) { return httplock.New(nil) },
		"guard of nothing": func() (*httplock.Middleware, error) {
			return httplock.New((*core.Locker)(nil).Guard(core.RejectConflicts))
		},
		"guard's policy": func() (*httplock.Middleware, error) {
			return httplock.New(b.Locker.Guard(retry.Policy{MaxWait: -1}))
		},
		"nil option":        func() (*httplock.Middleware, error) { return httplock.New(guard, nil) },
		"nil skip":          func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.Skip(nil)) },
		"nil logger":        func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.WithLogger(nil)) },
		"no body":           func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.WithMaxBody(0)) },
		"negative body":     func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.WithMaxBody(-1)) },
		"immense body":      func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.WithMaxBody(1<<40)) },
		"empty header name": func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.AllowHeaders("")) },
		"bad header name":   func() (*httplock.Middleware, error) { return httplock.New(guard, httplock.AllowHeaders("X A")) },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := build()
			require.ErrorIs(t, err, core.ErrInvalidOption)
			require.Nil(t, m)
		})
	}
	for _, name := range []string{
		"Authorization", "cookie", "PROXY-AUTHORIZATION", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding",
		"Upgrade", "Proxy-Connection", "Content-Length", "Expect", "Host",
	} {
		_, err := httplock.New(guard, httplock.AllowHeaders("X-Fine", name))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
	for _, path := range []string{"", "tickets/", "/tickets", "//evil.example/", "/t/?a=1", "/t/#f", "/t >/", "ftp://h/t/", "http:///t/", "https://u@h/", "\x00/"} {
		_, err := httplock.New(guard, httplock.WithStatusPath(path))
		require.ErrorIs(t, err, core.ErrInvalidOption, path)
	}
	for _, path := range []string{"/", "/tickets/", "https://api.example.com/v1/tickets/"} {
		_, err := httplock.New(guard, httplock.WithStatusPath(path))
		require.NoError(t, err, path)
	}
}

func TestMistakesFailClosed(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	fine, err := httplock.New(guard)
	require.NoError(t, err)
	for name, h := range map[string]http.Handler{
		"nil guard":       guarded(nil, mustNotRun(t)),
		"guard of none":   guarded((*core.Locker)(nil).Guard(core.RejectConflicts), mustNotRun(t)),
		"option":          guarded(guard, mustNotRun(t), httplock.WithMaxBody(0)),
		"nil option":      guarded(guard, mustNotRun(t), nil),
		"nil key":         httplock.PerKey(guard, nil)(mustNotRun(t)),
		"nil handler":     httplock.PerKey(guard, orderKey)(nil),
		"nil key, method": fine.Handler(nil, mustNotRun(t)),
		"zero Middleware": new(httplock.Middleware).Handler(orderKey, mustNotRun(t)),
		"nil Middleware":  (*httplock.Middleware)(nil).Handler(orderKey, mustNotRun(t)),
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				testbed.RequireProblem(t, testbed.Call(t, h, method, testbed.OrderPath, ""), http.StatusInternalServerError, "misconfigured", false)
			}
		})
	}
}

func TestMistakesAreLoggedAsTheGuards(t *testing.T) {
	out := testbed.CaptureLog(t)
	closed := httplock.FailClosed(errors.New("no guard"))
	h := closed.Handler(orderKey, mustNotRun(t))
	for range 2 {
		testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "")
	}
	require.Equal(t, 1, strings.Count(out.String(), "refused by a guard that is misconfigured"), "which route it is")
	require.Contains(t, out.String(), "every request behind this guard is refused")
	require.Contains(t, out.String(), "no guard")
}

func TestEveryProblemIsDocumented(t *testing.T) {
	source, err := os.ReadFile("problem.go")
	require.NoError(t, err)
	docs, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	kinds := regexp.MustCompile(`"([a-z-]+)", http\.Status`).FindAllSubmatch(source, -1)
	require.NotEmpty(t, kinds)
	for _, kind := range kinds {
		require.Contains(t, string(docs), "\n## "+string(kind[1])+"\n")
	}
}

func TestServeWithoutWritten(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	m, err := httplock.New(b.Locker.Guard(core.RejectConflicts))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	ran := m.Serve(httplock.Exchange{
		Writer: w, Request: testbed.Request(t, http.MethodPost, "/", ""),
		Key:  func() (string, error) { return "", nil },
		Next: func(*http.Request) { t.Error("it ran") },
	})
	require.False(t, ran)
	testbed.RequireProblem(t, testbed.Answer{Status: w.Code, Header: w.Result().Header, Body: w.Body.String()}, http.StatusBadRequest, "bad-key", false)
}
