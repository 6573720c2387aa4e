package core_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// What a node can be, as one letter in the name of a case.
const (
	nodeHeld    = 'h' // by somebody else
	nodeDead    = 'd'
	nodeStopped = 's'
)

// casesOf lists every way in which many nodes can be.
func casesOf(many int) (all []string) {
	if many == 0 {
		return []string{""}
	}
	for _, rest := range casesOf(many - 1) {
		for _, is := range "fhds" {
			all = append(all, rest+string(is))
		}
	}
	return all
}

// mixturesOf is casesOf with each mixture of nodes once, in a random order.
func mixturesOf(many int) (all []string) {
	for _, is := range casesOf(many) {
		if nodes := []byte(is); slices.IsSorted(nodes) {
			rand.Shuffle(many, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			all = append(all, string(nodes))
		}
	}
	return all
}

// expected is what a call gets; nil: the key. It comes at once, unless it hangs on those that do not answer.
func expected(nodes string) (atOnce bool, err error) {
	free, held := strings.Count(nodes, "f"), strings.Count(nodes, "h")
	dead, stopped := strings.Count(nodes, "d"), strings.Count(nodes, "s")
	majority := len(nodes)/2 + 1
	switch {
	case free >= majority:
		return true, nil
	case dead+stopped > len(nodes)-majority:
		return dead > len(nodes)-majority, core.ErrUnavailable
	default:
		return free+stopped < majority && free+held >= majority, core.ErrConflict
	}
}

const nodeTimeout = 500 * time.Millisecond

// make soak-locks has every order of them, and five nodes.
func TestQuorum_AMajorityGrantsAndEverySubsetIsTold(t *testing.T) {
	t.Parallel()
	for many, cases := range map[int][]string{3: mixturesOf(3), 4: mixturesOf(4)} {
		testSubsets(t, many, cases)
	}
}

func testSubsets(t *testing.T, many int, cases []string) {
	t.Helper()
	t.Run(fmt.Sprint(many), func(t *testing.T) {
		t.Parallel()
		onFakeNodes(t, many, func(t *testing.T, nodes []*fakeNode) {
			for _, is := range cases {
				testSubset(t, nodes, is)
			}
		})
	})
}

func testSubset(t *testing.T, nodes []*fakeNode, is string) {
	t.Helper()
	l := overNodes(t, nodes)
	warm(t, l)
	var holders []func()
	for i, n := range nodes {
		switch is[i] {
		case nodeHeld:
			other := lockerOn(t, n.client(t), "perkey")
			lease := testbed.Take(t, other, "k")
			holders = append(holders, func() {
				release(t, lease)
				require.NoError(t, other.Close())
			})
		case nodeDead:
			n.die()
		case nodeStopped:
			n.stop()
		}
	}
	atOnce, want := expected(is)
	start := time.Now()
	lease, err := l.TryAcquire(t.Context(), "k")
	took := time.Since(start)
	if want == nil {
		require.NoError(t, err, is)
		require.NoError(t, lease.Extend(t.Context(), time.Second), is)
		start := time.Now()
		require.NoError(t, lease.Release(t.Context()), is)
		require.LessOrEqual(t, time.Since(start), nodeTimeout+time.Millisecond, is)
	} else {
		require.ErrorIs(t, err, want, is)
		for _, other := range []error{core.ErrConflict, core.ErrUnavailable, core.ErrLeaseLost} {
			if !errors.Is(want, other) {
				require.NotErrorIs(t, err, other, is)
			}
		}
	}
	if atOnce && !strings.Contains(is, "d") { // go-redis dials a dead one more than once
		require.Less(t, took, 5*time.Millisecond, is)
	}
	require.LessOrEqual(t, took, nodeTimeout+time.Millisecond, is)
	for _, leave := range holders {
		leave()
	}
	allOf(nodes, (*fakeNode).live)
	time.Sleep(3 * time.Second)
	require.Empty(t, records(nodes), is)
	require.NoError(t, l.Close())
}
