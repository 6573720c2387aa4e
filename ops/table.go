package ops

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Other is the name under which everything beyond the first names is counted: see Snapshot.
const Other = "other"

// maxLabel bounds a name, in bytes.
const maxLabel = 100

// table finds the counters of a name without a mutex. It has most names at most, and Other.
type table[T any] struct {
	most  int
	other T
	named atomic.Pointer[map[string]*T] // never changed: replaced

	mu     sync.Mutex
	labels map[string]*T // what named has, as it is shown: two names can look alike
}

func (t *table[T]) of(name string) *T {
	if named := t.named.Load(); named != nil {
		if one, ok := (*named)[name]; ok {
			return one
		}
		if len(*named) == t.most {
			return &t.other
		}
	}
	return t.add(name)
}

func (t *table[T]) add(name string) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	named := map[string]*T{}
	if old := t.named.Load(); old != nil {
		if len(*old) == t.most {
			return &t.other
		}
		named = maps.Clone(*old)
	} else {
		t.labels = map[string]*T{Other: &t.other}
	}
	label := strings.Clone(shown(name))
	one, ok := t.labels[label]
	if !ok {
		one = new(T)
		t.labels[label] = one
	}
	named[strings.Clone(name)] = one
	t.named.Store(&named)
	return one
}

// each calls f for each name that there is, in order; for Other if used says that of it.
func (t *table[T]) each(used func(*T) bool, f func(label string, one *T)) {
	t.mu.Lock()
	labels := maps.Clone(t.labels)
	t.mu.Unlock()
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		if one := labels[label]; one != &t.other || used(one) {
			f(label, one)
		}
	}
}
