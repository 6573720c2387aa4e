// Package showtest checks the examples that are order services.
package showtest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Run is an example's: it serves at listen if that is not empty, until ctx ends.
type Run func(ctx context.Context, redisURL, listen string, out io.Writer) error

// Orders checks what an order service says, and that it goes on to serve.
func Orders(t *testing.T, run Run) {
	t.Run("answers as it says", func(t *testing.T) { answers(t, run) })
	t.Run("goes on to serve", func(t *testing.T) { serves(t, run) })
	t.Run("says what is wrong", func(t *testing.T) {
		require.ErrorContains(t, run(t.Context(), "nonsense", "", io.Discard), "-redis: want a URL")
		require.Error(t, run(t.Context(), "", "nowhere", io.Discard))
	})
}

func answers(t *testing.T, run Run) {
	t.Helper()
	for name, url := range map[string]func(*testing.T) string{
		"embedded": func(*testing.T) string { return "" },
		"real":     func(t *testing.T) string { return "redis://" + redistest.Real(t).Addr },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), url(t), "", &out), out.String())
			said := out.String()
			for _, want := range []string{
				`(?m)\A  POST /orders/42/pay  200  42 paid, fence [1-9]\d+$`,
				`(?m)^  POST /orders/42/pay  409  Retry-After: \d+$`,
				`(?m)^  POST /orders/7/pay   200  7 paid`,
				`(?m)^  POST /orders/42/ship 202  Location: /tickets/[0-9a-f]{32}$`,
				`(?m)^  PUT  /carts/42       200  42 put`,
				`(?m)^  GET  /tickets/[0-9a-f]{32} 200  42 shipped, fence [1-9]\d+\n\z`,
			} {
				require.Regexp(t, want, said)
			}
		})
	}
}

func serves(t *testing.T, run Run) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "", "127.0.0.1:0", in) }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "serving at "); ok {
			resp, err := http.Post(url+"/orders/1/pay", "", nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
			http.DefaultClient.CloseIdleConnections()
			stop()
			require.NoError(t, <-ended)
			return
		}
	}
	t.Error("it never served")
}
