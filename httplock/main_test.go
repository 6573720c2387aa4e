package httplock_test

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
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
	mux.Handle("/orders/{id}", httplock.PerKey(guard, orderKey, opts...)(handler))
	return mux
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// mustNotRun is a handler behind a guard that refuses.
func mustNotRun(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}
