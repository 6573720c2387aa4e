package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hinshun/vt10x"
	"github.com/stretchr/testify/require"
)

var demo string // the program

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "demotest")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		demo, err = build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// window is a terminal of the demo's size, and beside it a much larger one: what the demo draws beyond its window shows there.
type window struct {
	*session
	columns, rows int
	screen, large vt10x.Terminal
	raw           bytes.Buffer
}

const beyond = 60

func open(t *testing.T, columns, rows int, env ...string) *window {
	t.Helper()
	s, err := start(t.Context(), demo, uint16(columns), uint16(rows), env...)
	require.NoError(t, err)
	return &window{
		session: s, columns: columns, rows: rows, screen: vt10x.New(vt10x.WithSize(columns, rows)),
		large: vt10x.New(vt10x.WithSize(columns+beyond, rows+beyond)),
	}
}

// read reads output for some time, or until there is no more. After each part it calls check, which may be nil.
func (w *window) read(t *testing.T, d time.Duration, check func() (done bool)) (ended bool) {
	t.Helper()
	timeout := time.After(d)
	for {
		select {
		case data, ok := <-w.output:
			if !ok {
				return true
			}
			w.raw.Write(data)
			_, _ = w.screen.Write(data)
			_, _ = w.large.Write(data)
			if check != nil && check() {
				return false
			}
		case <-timeout:
			require.Nil(t, check, "it never showed what it should; it shows:\n%s", text(w.screen))
			return false
		}
	}
}

// until reads until the screen has all of that.
func (w *window) until(t *testing.T, want ...string) {
	t.Helper()
	w.read(t, 30*time.Second, func() bool {
		shown := text(w.screen)
		for _, part := range want {
			if !strings.Contains(shown, part) {
				return false
			}
		}
		return true
	})
}

// ends interrupts the demo, which breaks no promise.
func (w *window) ends(t *testing.T) {
	t.Helper()
	w.interrupt()
	require.True(t, w.read(t, 30*time.Second, func() bool { return false }))
	require.NoError(t, w.wait(), w.raw.String())
}

// text is what a terminal shows, without the spaces at the ends of lines.
func text(v vt10x.View) string {
	var all []string
	columns, rows := v.Size()
	for y := range rows {
		var l strings.Builder
		for x := range columns {
			l.WriteRune(max(v.Cell(x, y).Char, ' '))
		}
		all = append(all, strings.TrimRight(l.String(), " "))
	}
	return strings.Join(all, "\n")
}

// fits checks that everything stands within the window, and that nothing has wrapped.
func (w *window) fits(t *testing.T) {
	t.Helper()
	large := strings.Split(text(w.large), "\n")
	small := strings.Split(text(w.screen), "\n")
	for y, l := range large {
		require.LessOrEqual(t, len(l), w.columns)
		if y < w.rows {
			require.Equal(t, l, small[y])
		} else {
			require.Empty(t, l)
		}
	}
	require.False(t, w.screen.CursorVisible())
}

var sizes = [][2]int{{80, 24}, {40, 20}, {200, 50}}

// In a window of each size the demo shows what happens, within the window, also when it is given another size in the midst; and then it leaves
// the terminal as it was, with a summary.
func TestDemo_FitsItsWindow(t *testing.T) {
	for i, size := range sizes {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			t.Parallel()
			w := open(t, size[0], size[1], "TERM=xterm", "NO_COLOR=")
			everything := []string{"perkey one request", "inside now:", "waiting:", "parked:", "refused with 409", ": waited", "violations: 0 in", "/ops/"}
			w.until(t, everything...)
			for range 4 {
				w.read(t, 400*time.Millisecond, nil)
				w.fits(t)
			}
			require.Contains(t, w.raw.String(), "\x1b[32m")

			for _, other := range [][2]int{sizes[(i+1)%3], {20, 5}, size} {
				w.columns, w.rows = other[0], other[1]
				w.screen.Resize(w.columns, w.rows)
				w.large.Resize(w.columns+beyond, w.rows+beyond)
				w.raw.Reset()
				require.NoError(t, w.resize(uint16(w.columns), uint16(w.rows)))
				w.read(t, 10*time.Second, func() bool { return strings.Contains(w.raw.String(), "\x1b[2J") })
				w.read(t, 700*time.Millisecond, nil)
				w.fits(t)
			}
			w.until(t, everything...)

			w.raw.Reset()
			w.ends(t)
			require.True(t, w.screen.CursorVisible())
			require.Zero(t, w.screen.Mode()&vt10x.ModeAltScreen)
			_, stays, _ := strings.Cut(w.raw.String(), "\x1b[?1049l")
			require.NotContains(t, stays, "\x1b")
			require.Contains(t, stays, "violations: 0 in ")
			for l := range strings.SplitSeq(strings.ReplaceAll(stays, "\r", ""), "\n") {
				require.LessOrEqual(t, len(l), max(size[0], 50), l)
			}
		})
	}
}

// The terminal echoes what is typed: that scrolls nothing away, and is soon overwritten.
func TestDemo_KeysThatAreTyped(t *testing.T) {
	t.Parallel()
	w := open(t, 80, 24, "TERM=xterm")
	w.until(t, "violations: 0", "refused with 409", "twice: 202")
	for range 5 {
		_, err := w.terminal.Write([]byte("typed\n\n\n\n\n"))
		require.NoError(t, err)
		w.read(t, time.Second, nil)
	}
	w.read(t, 30*time.Second, func() bool {
		return strings.HasPrefix(text(w.screen), "perkey one request") && !strings.Contains(text(w.screen), "typed")
	})
	for _, want := range []string{"\nroute  ", "\ninside now:", "\nconsole http", "twice: 409", "twice: waits", "twice: 202"} {
		require.Contains(t, text(w.screen), want)
	}
	w.ends(t)
}

func TestDemo_HasNoColorsIfSo(t *testing.T) {
	t.Parallel()
	w := open(t, 80, 24, "TERM=xterm", "NO_COLOR=1")
	w.until(t, "violations: 0", "refused with 409")
	w.fits(t)
	w.ends(t)
	require.NotRegexp(t, "\x1b\\[[0-9;]*m", w.raw.String())
}

// On a terminal that cannot move its cursor the demo prints lines, at a calm pace.
func TestDemo_PrintsLinesOnADumbTerminal(t *testing.T) {
	for _, dumb := range []string{"dumb", ""} {
		t.Run(dumb, func(t *testing.T) {
			t.Parallel()
			w := open(t, 80, 40, "TERM="+dumb)
			w.until(t, "console http://", "curl -X PUT", "\n   5 s  ")
			w.ends(t)
			require.NotContains(t, w.raw.String(), "\x1b")
			lines := strings.Split(strings.ReplaceAll(w.raw.String(), "\r", ""), "\n")
			require.Less(t, len(lines), 40)
			for _, l := range lines {
				require.LessOrEqual(t, len(l), 80, l)
			}
		})
	}
}

// A recording is valid, small, and shows what the terminal has shown.
func TestRecord_MakesACastAndAPicture(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	castFile, svgFile := filepath.Join(dir, "demo.cast"), filepath.Join(dir, "demo.svg")
	require.NoError(t, record(t.Context(), castFile, svgFile, 6*time.Second, 4*time.Second))
	checkCast(t, castFile, 6*time.Second)
	checkPicture(t, svgFile)
}

// So are those in docs, which scripts/record.sh makes anew.
func TestRecord_DocsHaveBoth(t *testing.T) {
	checkCast(t, "../../../docs/demo.cast", time.Minute)
	checkPicture(t, "../../../docs/demo.svg")
}

func checkCast(t *testing.T, file string, length time.Duration) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Less(t, len(data), 256<<10)
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	require.True(t, lines.Scan())
	require.JSONEq(t, `{"version": 2, "width": 80, "height": 24, "title": "perkey: one request at a time per key"}`, lines.Text())
	screen, last := vt10x.New(vt10x.WithSize(80, 24)), 0.0
	best := ""
	for lines.Scan() {
		var e []any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		require.Len(t, e, 3)
		require.Equal(t, "o", e[1])
		require.GreaterOrEqual(t, e[0], last)
		last = e[0].(float64)
		_, _ = screen.Write([]byte(e[2].(string)))
		if shown := text(screen); strings.Contains(shown, "inside now") {
			best = shown
		}
	}
	require.InDelta(t, length.Seconds(), last, 10)
	require.Contains(t, best, "violations: 0 in")
	require.Contains(t, best, "/ops/")
	require.Contains(t, text(screen), "violations: 0 in", "the summary stays")
}

func checkPicture(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Less(t, len(data), 200<<10)
	var said strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if chars, ok := token.(xml.CharData); ok {
			said.Write(chars)
		}
	}
	for _, want := range []string{"perkey", "POST /orders/:id/ship", "inside now:", "violations: 0", "/ops/"} {
		require.Contains(t, said.String(), want)
	}
}
