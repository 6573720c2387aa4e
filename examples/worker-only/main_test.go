package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const jobs = `wallet:alice done balance 10
wallet:alice done balance 30
wallet:bob   done balance 5
wallet:alice done balance 5
wallet:bob   dead not an amount: "much"
wallet:bob   done balance 11
`

func TestItSaysWhatBecameOfItsJobs(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), "", &out))
		require.Equal(t, jobs+"report: 1 of 2 replicas ran it\n", out.String())
	})
	t.Run("real", func(t *testing.T) {
		env := redistest.Real(t)
		require.NoError(t, env.Client(t).FlushDB(t.Context()).Err())
		for _, report := range []string{"1 of 2", "0 of 2"} { // the second one within the minute
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), "redis://"+env.Addr, &out))
			require.Equal(t, jobs+"report: "+report+" replicas ran it\n", out.String())
		}
	})
}

func TestItSaysWhatIsWrong(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), "nonsense", io.Discard), "-redis: want a URL")
}
