package httplock_test

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// orderKey is a key function for routes with {id}.
func orderKey(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if id == "" {
		return "", httplock.BadKey(errors.New("no id"))
	}
	return "order:" + id, nil
}

// guarded serves handler at /orders/{id}, for all methods, behind PerKey.
func guarded(guard *core.Guard, handler http.HandlerFunc, opts ...httplock.Option) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.PerKey(guard, orderKey, said(guard, opts)...)(handler))
	return mux
}

// said are options that say whose requests are: nobody's, unless they say so already.
func said(guard *core.Guard, opts []httplock.Option) []httplock.Option {
	if _, err := httplock.New(guard, opts...); err != nil && strings.Contains(err.Error(), "or WithAnonymous") {
		return append(slices.Clone(opts), httplock.WithAnonymous())
	}
	return opts
}

// sentBy is WithPrincipal and WithReauthorize.
func sentBy(principal func(*http.Request) (string, error), reauthorize func(*http.Request, string) error) httplock.Option {
	return func(m *httplock.Middleware) error {
		return cmp.Or(httplock.WithPrincipal(principal)(m), httplock.WithReauthorize(reauthorize)(m))
	}
}

// remembering is WithIdempotency for all clients alike.
func remembering(store *idempotency.Store, opts ...httplock.IdempotencyOption) httplock.Option {
	return func(m *httplock.Middleware) error {
		return cmp.Or(httplock.WithIdempotency(store, opts...)(m), httplock.WithAnonymous()(m))
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// mustNotRun is a handler behind a guard that refuses.
func mustNotRun(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}

func TestConformance(t *testing.T) { conformance.Run(t, conformance.NetHTTP()) }
