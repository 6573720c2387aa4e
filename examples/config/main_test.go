package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const said = `\Aanother replica works on order 42 and cart 42:
  POST /orders/42/pay  409  Retry-After: \d+
  POST /orders/42/ship 202  /tickets/[0-9a-f]{32}
  PUT  /carts/42       200  42 put, fence [1-9]\d+
  GET  /tickets/[0-9a-f]{32}/result 200  42 shipped, fence [1-9]\d+
  task order:invoice {"order": 42}, fence [1-9]\d+
pay waits too, from now on:
  POST /orders/42/pay  200  42 paid, fence [1-9]\d+
a file with mistakes is refused, and the last one stays in force:
config: 2 problems:
  service\.yaml:\d+:\d+: guards\.cart\.on_conflict\.max_wait: .*
  service\.yaml:\d+:\d+: guards\.ship\.on_conflict\[1\]\.queue: .*
  POST /orders/42/pay  200  42 paid, fence [1-9]\d+
\z`

func TestTheFileChoosesWhatHappens(t *testing.T) {
	for name, url := range map[string]func(*testing.T) string{
		"embedded": func(*testing.T) string { return "" },
		"real":     func(t *testing.T) string { return "redis://" + redistest.Real(t).Addr },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), url(t), &out), out.String())
			require.Regexp(t, said, out.String())
		})
	}
}

func TestItSaysWhatIsWrong(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), "nonsense", io.Discard), "-redis: want a URL")
}
