package core_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// fencedStore is a row of a table with a column for the fence. Each method is a statement of SQL.
type fencedStore struct {
	mu    sync.Mutex
	fence int64
	value int

	accepted, refused int
	stale             int // accepted, although the writer had not read the last value
}

// claim is UPDATE … SET fence = $1 WHERE id = $2 AND fence <= $1.
func (s *fencedStore) claim(fence int64) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.fence {
		s.refused++
		return false
	}
	s.fence = fence
	return true
}

func (s *fencedStore) read() (value int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// write is UPDATE … SET value = … WHERE id = $2 AND fence = $1.
func (s *fencedStore) write(fence int64, was, value int) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(fence == s.fence, was, value)
}

// writeUnclaimed is UPDATE … SET value = …, fence = $1 WHERE id = $2 AND fence <= $1.
func (s *fencedStore) writeUnclaimed(fence int64, was, value int) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.set(fence >= s.fence, was, value) {
		return false
	}
	s.fence = fence
	return true
}

func (s *fencedStore) set(ok bool, was, value int) bool {
	if !ok {
		s.refused++
		return false
	}
	if s.value != was {
		s.stale++
	}
	s.value = value
	s.accepted++
	return true
}

// A payer pays an order that is not paid: value 0. Each step is a statement, and reports whether it goes on.
type payer []func() bool

// claimsFirst is what the documentation advises.
func claimsFirst(s *fencedStore, fence int64) payer {
	var was int
	return payer{
		func() bool { return s.claim(fence) },
		func() bool { was = s.read(); return was == 0 },
		func() bool { return s.write(fence, was, 1) },
	}
}

// comparesAtTheWrite is what it warns of.
func comparesAtTheWrite(s *fencedStore, fence int64) payer {
	var was int
	return payer{
		func() bool { was = s.read(); return was == 0 },
		func() bool { return s.writeUnclaimed(fence, was, 1) },
	}
}

// holdersOfOneKey returns the fences of leases of which each but the last was taken away while
// its holder, who has stopped, does not know.
func holdersOfOneKey(t *testing.T, l *core.Locker, n int) (fences []int64) {
	t.Helper()
	for len(fences) < n {
		lease := testbed.Take(t, l, "order:42")
		fences = append(fences, lease.Fence())
		require.True(t, force(t, l, "order:42", lease.Fence()))
	}
	return fences
}

// everyOrder lets the payers take their steps in each order that there is, on a store of its own.
func everyOrder(fences []int64, recipe func(*fencedStore, int64) payer, check func(*fencedStore)) {
	var next func(steps []int)
	steps := len(recipe(&fencedStore{}, 0))
	next = func(sofar []int) {
		if len(sofar) == steps*len(fences) {
			s := &fencedStore{}
			payers := make([]payer, len(fences))
			for i, fence := range fences {
				payers[i] = recipe(s, fence)
			}
			for _, i := range sofar {
				if p := payers[i]; len(p) > 0 && p[0]() {
					payers[i] = p[1:]
				} else {
					payers[i] = nil
				}
			}
			check(s)
			return
		}
		for i := range fences {
			if strings.Count(fmt.Sprint(sofar), fmt.Sprint(i)) < steps {
				next(append(slices.Clip(sofar), i))
			}
		}
	}
	next(nil)
}

func TestFence_ClaimedBeforeTheReadPaysOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := lockerOn(t, env.Client(t), env.Prefix)
		for holders, orders := range map[int]int{2: 20, 3: 1680} {
			seen := 0
			everyOrder(holdersOfOneKey(t, l, holders), claimsFirst, func(s *fencedStore) {
				seen++
				require.Equal(t, 1, s.accepted, "payments")
				require.Zero(t, s.stale)
			})
			require.Equal(t, orders, seen)
		}
	})
}

// Why the claim comes first: a store that compares fences at the write alone takes the write of a
// holder which lost its key after its read, as long as the next holder has not written.
func TestFence_ComparedAtTheWriteAlonePaysTwice(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := lockerOn(t, env.Client(t), env.Prefix)
		seen, twice := 0, 0
		everyOrder(holdersOfOneKey(t, l, 2), comparesAtTheWrite, func(s *fencedStore) {
			seen++
			if s.accepted == 2 {
				twice++
			}
		})
		require.Equal(t, 6, seen)
		require.Equal(t, 2, twice, "both read, then the stale holder writes, then the other one")
	})
}
