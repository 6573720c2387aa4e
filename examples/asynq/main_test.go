package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const said = `{"wallet": "alice", "amount": 10} completed, retried 0
{"wallet": "alice", "amount": 20} completed, retried 0
{"wallet": "alice", "amount": -5} completed, retried 0
{"wallet": "bob", "amount": 1}    completed, retried 0
{"wallet": "bob", "amount": 2}    completed, retried 0
{"wallet": "bob", "amount": 3}    completed, retried 0
{"amount": 4}                     archived, retried 0
  asynqlock: no usable key in the task: `

func TestTasksOfAWalletTakeTurns(t *testing.T) {
	for name, url := range map[string]func(*testing.T) string{
		"embedded": func(*testing.T) string { return "" },
		"real":     func(t *testing.T) string { return "redis://" + redistest.Real(t).Addr },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), url(t), &out), out.String())
			require.True(t, strings.HasPrefix(out.String(), said), out.String())
			require.Contains(t, out.String(), "\nalice has 25, bob 6\n")
			require.Regexp(t, `\none server ran \d bookings, the other \d; refused meanwhile: [1-9]\d*\n`, out.String(), "some met a held key")
		})
	}
}

func TestItSaysWhatIsWrong(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), "nonsense", io.Discard), "-redis: want a URL")
}
