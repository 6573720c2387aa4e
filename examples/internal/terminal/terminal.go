// Package terminal draws lines in place on a terminal, within its window whatever its size.
package terminal

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// Terminal is one that can be drawn on. A nil one is no terminal: it has a Size, for what is printed.
type Terminal struct {
	file   *os.File
	colors bool
}

// Open returns nil if f is not a terminal, or one that cannot move its cursor. NO_COLOR turns colors off.
func Open(f *os.File) *Terminal {
	if _, _, err := windowSize(f); err != nil || cmp.Or(os.Getenv("TERM"), "dumb") == "dumb" {
		return nil
	}
	return &Terminal{file: f, colors: os.Getenv("NO_COLOR") == ""}
}

// Size is that of the window; 80 x 24 if it is not known, as on a serial line.
func (t *Terminal) Size() (columns, rows int) {
	if t != nil {
		if columns, rows, err := windowSize(t.file); err == nil && columns > 0 && rows > 0 {
			return columns, rows
		}
	}
	return 80, 24
}

// What a terminal is told, beside styles.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	clearScreen = "\x1b[2J"
	clearToEnd  = "\x1b[K"
	beginFrame  = "\x1b[?2026h"       // terminals that know it show the frame as a whole
	endFrame    = "\x1b[H\x1b[?2026l" // the cursor is at the top: a key that is echoed scrolls nothing away
)

const (
	tick       = 100 * time.Millisecond // the window may have another size
	frameEvery = 5                      // ticks
	wholeEvery = 50                     // since the terminal echoes what is typed
)

// Draw draws the lines that layout returns, at most rows, until ctx ends: twice a second the lines that have changed, and now and then, and when the window
// has another size, all of them. It has a screen of its own, so that the terminal keeps what stood there before, and wraps none
// of this when it is resized. Lines are of printable ASCII and Styles; what is beyond the window is cut off.
func (t *Terminal) Draw(ctx context.Context, layout func(columns, rows int) []string) {
	fmt.Fprint(t.file, enterScreen)
	defer fmt.Fprint(t.file, leaveScreen)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()

	var was []string
	var size [2]int
	for n := 0; ctx.Err() == nil; n++ {
		columns, rows := t.Size()
		resized := size != [2]int{columns, rows}
		if resized {
			size = [2]int{columns, rows}
			fmt.Fprint(t.file, clearScreen)
		}
		if resized || n%wholeEvery == 0 {
			was = nil
		}
		if resized || n%frameEvery == 0 {
			is := make([]string, rows)
			columns-- // a full line would leave some cursors on the next one
			for y, l := range layout(columns, rows) {
				if is[y] = clip(l, columns); !t.colors {
					is[y] = bare(is[y])
				}
			}
			fmt.Fprint(t.file, frame(is, was))
			was = is
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// frame is what makes a terminal that shows was show is.
func frame(is, was []string) string {
	var b strings.Builder
	for y, l := range is {
		if y >= len(was) || l != was[y] {
			fmt.Fprintf(&b, "\x1b[%d;1H%s%s", y+1, l, clearToEnd)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return beginFrame + b.String() + endFrame
}
