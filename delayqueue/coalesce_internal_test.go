package delayqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The newer one was cancelled before the one that ran meanwhile was given back: the next one replaces that.
func TestCoalesce_WhatIsGivenBackIsReplacedByTheNextOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, q := t.Context(), testQueue(t, env)
		for i := range 20 {
			key := fmt.Sprint("doc", i)
			save := func(id string) string {
				_, err := q.Enqueue(ctx, Job{ID: id + key, Key: key, Coalesce: true})
				require.NoError(t, err)
				return id + key
			}
			first := save("first")
			claims := claimTest(t, q, "token"+key, 1)
			require.Len(t, claims, 1)
			require.NoError(t, q.Cancel(ctx, save("second")))
			require.True(t, settleTest(t, claims[0], outcome{end: store.Conflicted, delay: time.Hour}))
			third := save("third")
			status, err := q.Status(ctx, first)
			require.NoError(t, err)
			require.Equal(t, third, status.SupersededBy)
			line, _, err := q.Line(ctx, key, "", 10)
			require.NoError(t, err)
			require.Len(t, line, 1)
			require.Equal(t, third, line[0].ID)
			require.NoError(t, q.Cancel(ctx, third))
		}
	})
}
