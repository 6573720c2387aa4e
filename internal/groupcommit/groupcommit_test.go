package groupcommit_test

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/perkey-go/perkey/internal/groupcommit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage runs batches of numbers, and keeps those that begin with a number below zero until they are let go.
type stage struct {
	mu      sync.Mutex
	batches [][]int
	out     int // batches under way
	letGo   chan struct{}
	takes   time.Duration // how long the others take
}

func (s *stage) run(batch []int) {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(batch))
	s.out++
	s.mu.Unlock()
	if batch[0] < 0 {
		<-s.letGo
	} else {
		time.Sleep(s.takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out--
}

func (s *stage) ran() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

func (s *stage) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

// play makes a group of a stage in a bubble, where time passes when all wait.
func play(t *testing.T, o groupcommit.Options[int], test func(t *testing.T, g *groupcommit.Group[int], s *stage)) {
	t.Helper()
	for name, keeps := range map[string]bool{"new goroutines": false, "kept goroutines": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{letGo: make(chan struct{})}
				o.Run, o.Go = s.run, nil
				var running sync.WaitGroup
				var kept atomic.Int32
				if keeps {
					o.Go = func(f func()) bool {
						kept.Add(1)
						running.Go(func() {
							defer kept.Add(-1)
							f()
						})
						return true
					}
				}
				g := groupcommit.New(o)
				test(t, g, s)
				synctest.Wait()
				require.EqualValues(t, kept.Load(), g.Goroutines())
				if keeps {
					require.LessOrEqual(t, g.Goroutines(), o.Width)
					g.Close()
					running.Wait()
					require.Zero(t, g.Goroutines())
				}
			})
		})
	}
}

func TestAdd_WhatComesMeanwhileGoesTogether(t *testing.T) {
	play(t, groupcommit.Options[int]{Width: 2, Max: 2}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		for _, n := range []int{-1, -2} {
			require.NoError(t, g.Add(n))
			synctest.Wait()
		}
		require.NoError(t, g.Add(1))
		require.NoError(t, g.Add(2, 3))
		synctest.Wait()
		require.Equal(t, [][]int{{-1}, {-2}}, s.ran(), "the others wait")
		close(s.letGo)
		synctest.Wait()
		require.Equal(t, [][]int{{-1}, {-2}, {1, 2, 3}}, s.ran())
	})
}

func TestAdd_ABatchHasWhatFits(t *testing.T) {
	for name, c := range map[string]struct {
		o     groupcommit.Options[int]
		added []int
		want  [][]int
	}{
		"two at a time": {
			groupcommit.Options[int]{Fits: func(queue []int) int { return min(2, len(queue)) }},
			[]int{1, 2, 3, 4, 5},
			[][]int{{1, 2}, {3, 4}, {5}},
		},
		"what is first, as many as there is room for, and none whose caller has left": {
			groupcommit.Options[int]{
				Fits: func(queue []int) int { return min(4, len(queue)) }, First: func(n int) bool { return n%2 == 0 },
				Late: func(int) bool { return false }, Gone: func(n int) bool { return n == 4 },
			}, []int{1, 2, 3, 4, 6, 8, 10}, [][]int{{2, 6, 8, 1}, {10, 3}},
		},
		"by what is left": {
			groupcommit.Options[int]{
				Fits: func(queue []int) int { return min(len(queue), 2-queue[0]%2) }, Gone: func(n int) bool { return n == 8 },
			}, []int{8, 1, 3}, [][]int{{1}, {3}},
		},
	} {
		c.o.Width, c.o.Max = 1, 1
		play(t, c.o, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
			require.NoError(t, g.Add(-1))
			synctest.Wait()
			require.NoError(t, g.Add(c.added...))
			if c.o.Gone != nil {
				g.Forget()
			}
			close(s.letGo)
			synctest.Wait()
			require.Equal(t, append([][]int{{-1}}, c.want...), s.ran(), name)
		})
	}
}

func TestLate_IsAskedOfWhatDoesNotFitBesideOthers(t *testing.T) {
	two := func(queue []int) int { return min(2, len(queue)) }
	late := 10
	o := groupcommit.Options[int]{
		Width: 3, Max: 3, Fits: two, Late: func(n int) bool { return n > late }, Gone: func(int) bool { return false },
	}
	play(t, o, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		add := func(items ...int) (ran [][]int) {
			before := len(s.ran())
			require.NoError(t, g.Add(items...))
			synctest.Wait()
			return s.ran()[before:]
		}
		late = 10
		add(-1)
		add(-2)
		require.Equal(t, [][]int{{1, 2}, {13}}, add(11, 1, 12, 2, 13), "the last one fits")
		require.Equal(t, [][]int{{3}}, add(3))
		late = 12
		require.Equal(t, [][]int{{4, 12}, {11}}, add(4), "they are not late any more")
		late = 10
		require.Empty(t, add(11, 12, 13))
		time.Sleep(19 * time.Millisecond)
		require.Empty(t, add())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, [][]int{{12, 13}}, s.ran()[7:], "those in flight may be stuck")
		close(s.letGo)
		synctest.Wait()
		require.Equal(t, [][]int{{11}}, s.ran()[8:], "nothing is in flight")
	})
}

func TestAdd_TooFewWaitForTheBatchUnderWay(t *testing.T) {
	three := func(items int) bool { return items >= 3 }
	play(t, groupcommit.Options[int]{Width: 2, Max: 3, Enough: three}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		require.NoError(t, g.Add(-1))
		synctest.Wait()
		require.NoError(t, g.Add(1, 2))
		synctest.Wait()
		require.Equal(t, [][]int{{-1}}, s.ran())
		s.takes = time.Millisecond
		require.NoError(t, g.Add(3))
		synctest.Wait()
		require.Equal(t, [][]int{{-1}, {1, 2, 3}}, s.ran(), "three are enough")
		require.NoError(t, g.Add(4))
		time.Sleep(5 * time.Millisecond)
		require.Len(t, s.ran(), 2, "and one is not, after them either")
		close(s.letGo)
		synctest.Wait()
		require.Equal(t, [][]int{{-1}, {1, 2, 3}, {4}}, s.ran())

		time.Sleep(time.Second)
		s.letGo = make(chan struct{})
		require.NoError(t, g.Add(-2))
		synctest.Wait()
		require.NoError(t, g.Add(5))
		time.Sleep(time.Second)
		require.Equal(t, [][]int{{-1}, {1, 2, 3}, {4}, {-2}, {5}}, s.ran(), "nor does one wait for a batch that is stuck")
		close(s.letGo)
	})
}

func TestAdd_NobodyWaitsForBatchesThatAreStuck(t *testing.T) {
	one := func([]int) int { return 1 }
	play(t, groupcommit.Options[int]{Width: 1, Max: 3, Fits: one}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		require.NoError(t, g.Add(-1, -2, -3, 1)) // and nothing comes after them
		time.Sleep(19 * time.Millisecond)
		require.Equal(t, [][]int{{-1}}, s.ran())
		time.Sleep(time.Second)
		require.Equal(t, [][]int{{-1}, {-2}, {-3}}, s.ran(), "they are bounded")
		close(s.letGo)
		synctest.Wait()
		require.Len(t, s.ran(), 4)
	})
}

func TestRun_FewBatchesAreUnderWayAgainAfterSlowOnes(t *testing.T) {
	one := func([]int) int { return 1 }
	play(t, groupcommit.Options[int]{Width: 1, Max: 8, Fits: one}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		s.takes = time.Millisecond
		for n := range 5 {
			require.NoError(t, g.Add(-1-n))
			time.Sleep(25 * time.Millisecond)
		}
		require.Equal(t, 5, s.now())
		require.NoError(t, g.Add(make([]int, 100)...))
		close(s.letGo)
		time.Sleep(15500 * time.Microsecond)
		require.Equal(t, 1, s.now(), "while there is more in the queue than anybody can do")
		time.Sleep(time.Second)
		require.Len(t, s.ran(), 105)
	})
}

func TestForget_TheQueueDoesNotOutgrowTheCallers(t *testing.T) {
	left := map[int]bool{}
	var out []int
	o := groupcommit.Options[int]{
		Width: 1, Max: 1, Gone: func(n int) bool { return left[n] }, Drop: func(items []int) { out = append(out, items...) },
	}
	play(t, o, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		clear(left)
		out = nil
		require.NoError(t, g.Add(-1))
		synctest.Wait()
		for n := range 1000 {
			require.NoError(t, g.Add(n))
			if n%100 != 0 {
				left[n] = true
				g.Forget()
			}
		}
		require.Greater(t, len(out), 970)
		require.Less(t, len(out), 990, "but not at each call")
		close(s.letGo)
		synctest.Wait()
		require.Len(t, out, 990)
		require.Equal(t, []int{0, 100, 200, 300, 400, 500, 600, 700, 800, 900}, s.ran()[1])
	})
}

func TestRefuse_TheQueueIsReturnedUntilAccept(t *testing.T) {
	play(t, groupcommit.Options[int]{Width: 1, Max: 1}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		require.NoError(t, g.Add(-1))
		synctest.Wait()
		require.NoError(t, g.Add(1, 2))
		why := errors.New("why")
		queue, refused := g.Refuse(why)
		require.True(t, refused)
		require.Equal(t, []int{1, 2}, queue)
		_, refused = g.Refuse(errors.New("again"))
		require.False(t, refused)
		require.ErrorIs(t, g.Add(3), why)
		close(s.letGo)
		synctest.Wait()
		require.False(t, g.Enter())
		require.Error(t, g.Refused())
		require.True(t, g.Accept())
		require.False(t, g.Accept())
		require.NoError(t, g.Add(4))
		synctest.Wait()
		require.Equal(t, [][]int{{-1}, {4}}, s.ran())
	})
}

func TestEnter_OneCallerGoesAlone(t *testing.T) {
	play(t, groupcommit.Options[int]{Width: 1, Max: 1}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		require.True(t, g.Enter())
		require.False(t, g.Enter())
		require.NoError(t, g.Add(1))
		synctest.Wait()
		require.Empty(t, s.ran())
		g.Leave()
		synctest.Wait()
		require.Equal(t, [][]int{{1}}, s.ran())
		require.True(t, g.Enter())
		g.Leave()
	})
}

// A caller that has just had its reply comes back before the goroutine that ran its batch has ended.
func TestEnter_WhileAGoroutineLooksForMore(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the caller runs while the goroutine lets others go first
	for width, least := range map[int]int{1: 0, 2: 50} {
		done, entered := make(chan struct{}, 1), 0
		g := groupcommit.New(groupcommit.Options[int]{Width: width, Max: width, Run: func([]int) { done <- struct{}{} }})
		for range 100 {
			require.NoError(t, g.Add(1))
			<-done
			if g.Enter() {
				entered++
				require.False(t, g.Enter())
				require.NoError(t, g.Add(2)) // runs beside it, if the width allows
				if width == 1 {
					require.Empty(t, done)
				} else {
					<-done
				}
				g.Leave()
				if width == 1 {
					<-done
				}
			}
			for g.Goroutines() > 0 {
				runtime.Gosched()
			}
		}
		require.GreaterOrEqual(t, entered, least, "of 100, width %d", width)
	}
}

func TestClose_WhatIsAddedIsRunAndNoGoroutineIsKept(t *testing.T) {
	play(t, groupcommit.Options[int]{Width: 1, Max: 1}, func(t *testing.T, g *groupcommit.Group[int], s *stage) {
		require.NoError(t, g.Add(-1))
		synctest.Wait()
		require.NoError(t, g.Add(1))
		g.Close()
		close(s.letGo)
		synctest.Wait()
		require.Zero(t, g.Goroutines())
		_, refused := g.Refuse(errors.New("why"))
		require.False(t, refused)
		require.NoError(t, g.Add(2))
		synctest.Wait()
		require.Zero(t, g.Goroutines())
		require.Equal(t, [][]int{{-1}, {1}, {2}}, s.ran())
	})
}

func TestAdd_WhenNoGoroutineCanBeHadTheGroupIsClosed(t *testing.T) {
	g := groupcommit.New(groupcommit.Options[int]{Width: 1, Max: 1, Go: func(func()) bool { return false }})
	require.ErrorIs(t, g.Add(1), groupcommit.ErrClosed)
}

// Many callers add, leave, enter; a node goes down and up; then all ends. Each item is run, returned or refused, once.
// It is long since it is one story.
func TestGroup_EachItemHasOneEnd(t *testing.T) {
	type item struct{ left, ends atomic.Int32 }
	var running sync.WaitGroup
	var out atomic.Int32
	var crowded atomic.Bool
	g := groupcommit.New(groupcommit.Options[*item]{
		Width: 3, Max: 5, Enough: func(items int) bool { return items >= 3 },
		Run: func(batch []*item) {
			if out.Add(1) > 5 {
				crowded.Store(true)
			}
			defer out.Add(-1)
			time.Sleep(50 * time.Microsecond)
			for _, it := range batch {
				it.ends.Add(1)
			}
		},
		Gone: func(it *item) bool { return it.left.Load() == 1 },
		Drop: func(items []*item) {
			for _, it := range items {
				it.ends.Add(1)
			}
		},
		Go: func(f func()) bool {
			running.Go(f)
			return true
		},
	})
	down := errors.New("down")
	var items [16][2000]item
	var callers sync.WaitGroup
	for c := range items {
		callers.Go(func() {
			for i := range items[c] {
				it := &items[c][i]
				switch {
				case i%7 == 0 && g.Enter():
					it.ends.Add(1)
					g.Leave()
				case g.Add(it) != nil:
					it.ends.Add(1)
				case i%3 == 0:
					it.left.Store(1)
					g.Forget()
				}
				if i%100 == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	callers.Go(func() {
		for range 50 {
			queue, _ := g.Refuse(down)
			for _, it := range queue {
				it.ends.Add(1)
			}
			runtime.Gosched()
			g.Accept()
			time.Sleep(300 * time.Microsecond)
		}
	})
	callers.Wait()
	g.Close()
	running.Wait()
	for c := range items {
		for i := range items[c] {
			require.EqualValues(t, 1, items[c][i].ends.Load())
		}
	}
	require.False(t, crowded.Load())
}

func TestAdd_CostsNoAllocation(t *testing.T) {
	done := make(chan struct{})
	var running sync.WaitGroup
	g := groupcommit.New(groupcommit.Options[*int]{
		Width: 1, Max: 1, Run: func([]*int) { done <- struct{}{} },
		Go: func(f func()) bool {
			running.Go(f)
			return true
		},
	})
	n := 1
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = g.Add(&n)
		<-done
	}))
	g.Close()
	running.Wait()
}
