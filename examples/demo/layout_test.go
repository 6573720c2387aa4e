package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/examples/internal/terminal"
)

// crowded is a view with long lists and large numbers, and a key that would draw something else.
func crowded() *view {
	b := newScoreboard("embedded", place{url: "http://127.0.0.1:54321", local: true})
	for i := range 40 {
		key := fmt.Sprintf("order:%d", 10_000+i)
		b.enter(routes[i%3].name, key, false)
		b.now.parked[key], b.now.waiting[key] = i, i
	}
	b.enter(routeCart, "cart:\x1b[2J"+strings.Repeat("é", 100), false)
	for i := range b.now.rows {
		r := &b.now.rows[i]
		r.n = [tallies]int{requests: 99_999, ran: 99_999, refused: 9_999, waited: 99_999, parked: 99_999, replayed: 99_999}
		r.waits = []time.Duration{time.Second, 2 * time.Second}
		r.tell("order:10001: refused with 409", ", as another request is inside")
	}
	for _, at := range b.now.inside {
		at.since = at.since.Add(-3 * time.Hour)
	}
	return b.view()
}

// No line is wider than the window, and there are no more of them than it has rows, whatever its size; and what matters most is there.
func TestLayout_FitsEveryWindow(t *testing.T) {
	v := crowded()
	for columns := range 220 {
		for rows := range 60 {
			lines := v.layout(columns, rows)
			require.LessOrEqual(t, len(lines), rows)
			screen := terminal.Text(lines, columns)
			for text := range strings.Lines(screen) {
				require.LessOrEqual(t, len(text), columns+1)
				require.NotContains(t, text, "\x1b")
			}
			if columns >= 39 && rows >= 7 {
				for _, want := range []string{"ship", "refused", "violations: 0", "/ops/"} {
					require.Contains(t, screen, want, "%d x %d", columns, rows)
				}
			}
			if columns >= 39 && rows >= 20 {
				for _, want := range []string{"inside now: 41", "waiting: 39", "parked: 39", "order:10000", "1 request", "refused with 409"} {
					require.Contains(t, screen, want, "%d x %d", columns, rows)
				}
			}
			if columns >= 79 && rows >= 24 {
				for _, want := range []string{"curl -X POST 'http://127.0.0.1:54321/orders/7/pay?work=5s'", "/ship?work", "one at a time per key", "Ctrl-C"} {
					require.Contains(t, screen, want, "%d x %d", columns, rows)
				}
			}
		}
	}
}

func TestLayout_SaysWhatIsBroken(t *testing.T) {
	v := crowded()
	v.place.local, v.violations, v.lost, v.failure = false, 3, 1, errors.New("what failed")
	for _, size := range [][2]int{{39, 20}, {79, 24}, {199, 50}} {
		screen := terminal.Text(v.layout(size[0], size[1]), size[0])
		for _, want := range []string{"violations: 3", "lost: 1", "read-only"} {
			require.Contains(t, screen, want, "%v", size)
		}
	}
}
