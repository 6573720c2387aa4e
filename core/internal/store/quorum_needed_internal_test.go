package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// As few nodes as keep the holders within the limit have to grant a token.
func TestQuorum_NeedsAsManyNodesAsTheLimitTakes(t *testing.T) {
	t.Parallel()
	for many := 3; many <= 9; many++ {
		q := &quorum{nodes: make([]*node, many)}
		require.Equal(t, many/2+1, q.needed("0:l.s"), "readers, against a writer")
		for n := 1; n <= 20; n++ {
			needed := q.needed(fmt.Sprint(n, ":l.s"))
			require.LessOrEqual(t, many*n/needed, n, "%d nodes with %d places each", many, n)
			require.Greater(t, many*n/(needed-1), n, "one node less would do")
		}
	}
}
