package adapter_test

import (
	"net/http"
	"testing"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const orderPath = base + "/orders/" + testbed.Secret

var orderKey = httplock.Param("order:", "id")

func ok(x exchange) error { return x.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) func(exchange) error {
	t.Helper()
	return func(exchange) error {
		t.Error("the handler ran")
		return nil
	}
}

// each runs a test under both versions.
func each(t *testing.T, test func(t *testing.T, v version)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}

// onBoth runs a test under both versions, on the embedded Redis and on a real one.
func onBoth(t *testing.T, test func(t *testing.T, v version, env *redistest.Env)) {
	t.Helper()
	t.Parallel()
	each(t, func(t *testing.T, v version) {
		redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, v, env) })
	})
}
