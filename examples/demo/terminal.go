package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

// terminal is where lines are drawn in place.
type terminal struct {
	size   func() (columns, rows int)
	colors bool
}

// openTerminal returns nil if f is not a terminal, or one that cannot move its cursor.
func openTerminal(f *os.File) *terminal {
	if _, _, err := windowSize(f); err != nil || cmp.Or(os.Getenv("TERM"), "dumb") == "dumb" {
		return nil
	}
	return &terminal{colors: os.Getenv("NO_COLOR") == "", size: func() (int, int) {
		columns, rows, err := windowSize(f)
		if err != nil || columns <= 0 || rows <= 0 {
			return 80, 24 // such as on a serial line
		}
		return columns, rows
	}}
}

// columns is how wide what is printed at the end may be.
func (c config) columns() int {
	if c.terminal == nil {
		return 80
	}
	columns, _ := c.terminal.size()
	return columns
}

// style is a parameter of SGR, such as 31 for red.
type style string

const (
	plain  style = ""
	bold   style = "1"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	pink   style = "35"
	blue   style = "36"
)

// line is text in one style or more. What is not printable ASCII, such as in the key of somebody's request, is
// drawn as a question mark: then a byte is a column.
type line []span

type span struct {
	style style
	text  string
}

func (l line) width() (n int) {
	for _, s := range l {
		n += utf8.RuneCountInString(s.text)
	}
	return n
}

func (l line) padded(columns int) line {
	return append(l, span{plain, strings.Repeat(" ", max(0, columns-l.width()))})
}

// clipped is what of the line fits into so many columns, as it is drawn.
func (l line) clipped(columns int) (all line) {
	for _, s := range l {
		text := strings.Map(printable, s.text)
		text = text[:max(0, min(len(text), columns))]
		if columns -= len(text); text != "" {
			all = append(all, span{s.style, text})
		}
	}
	return all
}

func (l line) draw(colors bool) string {
	var b strings.Builder
	for _, s := range l {
		if !colors || s.style == plain {
			b.WriteString(s.text)
		} else {
			b.WriteString("\x1b[" + string(s.style) + "m" + s.text + "\x1b[m")
		}
	}
	return b.String()
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '?'
	}
	return r
}

// What a terminal is told, beside colors.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	clearScreen = "\x1b[2J"
	clearToEnd  = "\x1b[K"
	beginFrame  = "\x1b[?2026h"       // terminals that know it show the frame as a whole
	endFrame    = "\x1b[H\x1b[?2026l" // the cursor is at the top: a key that is echoed scrolls nothing away
)

func moveTo(row int) string { return fmt.Sprintf("\x1b[%d;1H", row+1) }
