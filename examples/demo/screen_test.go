package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowded is a view with long lists and large numbers, and a key that would draw something else.
func crowded() *view {
	b := newScoreboard("embedded", place{url: "http://127.0.0.1:54321", local: true})
	for i := range 40 {
		key := fmt.Sprintf("order:%d", 10_000+i)
		b.enter(routes[i%3], key)
		b.parked[key], b.waiting[key] = i, i
	}
	b.enter(routeCart, "cart:\x1b[2J"+strings.Repeat("é", 100))
	for _, r := range b.rows {
		r.requests, r.ran, r.refused, r.waited, r.parked, r.replayed = 99_999, 99_999, 9_999, 99_999, 99_999, 99_999
		r.waits = []time.Duration{time.Second, 2 * time.Second}
		r.tell("order:10001: refused with 409", ", as another request is inside")
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
			var all []string
			for _, l := range lines {
				text := l.clipped(columns).draw(false)
				require.LessOrEqual(t, len(text), columns)
				require.NotContains(t, text, "\x1b")
				all = append(all, text)
			}
			screen := strings.Join(all, "\n")
			if columns >= 39 && rows >= 7 {
				for _, want := range []string{"ship", "refused", "violations: 0", "/ops/"} {
					require.Contains(t, screen, want, "%d x %d", columns, rows)
				}
			}
			if columns >= 39 && rows >= 20 {
				for _, want := range []string{"inside now: 41", "waiting: 39", "parked: 39", "order:10000", "1 request", "refused with 409"} {
					require.Contains(t, screen+"\n", want, "%d x %d", columns, rows)
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
	v.place.local, v.violations, v.lostOnes, v.failure = false, 3, 1, errors.New("what failed")
	for _, size := range [][2]int{{39, 20}, {79, 24}, {199, 50}} {
		var screen strings.Builder
		for _, l := range v.layout(size[0], size[1]) {
			screen.WriteString(l.clipped(size[0]).draw(false) + "\n")
		}
		for _, want := range []string{"violations: 3", "lost: 1", "read-only"} {
			require.Contains(t, screen.String(), want, "%v", size)
		}
	}
}

// A frame has only what has changed; in another window it has everything.
func TestScreen_DrawsWhatChanged(t *testing.T) {
	of := func(columns int, texts ...string) screen {
		s := screen{columns: columns, rows: 24}
		for _, text := range texts {
			s.lines = append(s.lines, line{{plain, "line "}, {red, text}})
		}
		return s
	}
	first := of(80, "a", "b", "c")
	require.Equal(t, beginFrame+clearScreen+"\x1b[1;1Hline a\x1b[K\x1b[2;1Hline b\x1b[K\x1b[3;1Hline c\x1b[K"+endFrame, first.after(screen{}, false))
	require.Empty(t, first.after(first, false))
	require.Equal(t, beginFrame+"\x1b[2;1Hline \x1b[31mB\x1b[m\x1b[K\x1b[3;1H\x1b[K"+endFrame, of(80, "a", "B").after(first, true))
	require.Equal(t, beginFrame+"\x1b[2;1Hline longer\x1b[K"+endFrame, of(80, "a", "longer", "c").after(first, false))
	require.Contains(t, of(79, "a", "b", "c").after(first, false), clearScreen)
}

func TestLine_IsCutOff(t *testing.T) {
	l := line{{red, "red\x07"}, {plain, "plain"}}
	require.Equal(t, line{{red, "red?"}, {plain, "pl"}}, l.clipped(6))
	require.Equal(t, line{{red, "re"}}, l.clipped(2))
	require.Empty(t, l.clipped(0))
	require.Equal(t, 9, l.width())
	require.Equal(t, "red?plain", l.clipped(80).draw(false))
}
