package main

import (
	"bufio"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// screen is a terminal that is drawn over, from begin to end.
type screen struct {
	out io.Writer
	in  *os.File
	fd  int
	was *term.State
}

// newScreen is the terminal that out is, if it is one.
func newScreen(in *os.File, out io.Writer) (*screen, bool) {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || !term.IsTerminal(int(in.Fd())) {
		return nil, false
	}
	return &screen{out: out, in: in, fd: int(file.Fd())}, true
}

// What is sent to a terminal: all of it is in ECMA-48, or known to every emulator.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, no cursor, no line goes on in the next
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTheTop    = "\x1b[H"
	endOfLine   = "\x1b[K"
	restOfAll   = "\x1b[J"
	reverse     = "\x1b[7m"
	bold        = "\x1b[1m"
	alarm       = "\x1b[1;31m"
	plainAgain  = "\x1b[0m"
)

// begin takes the terminal over: what is typed is not shown.
func (s *screen) begin() (err error) {
	if s.was, err = term.MakeRaw(int(s.in.Fd())); err != nil {
		return err
	}
	_, err = io.WriteString(s.out, enterScreen)
	return err
}

// end gives the terminal back as it was.
func (s *screen) end() {
	_, _ = io.WriteString(s.out, leaveScreen)
	_ = term.Restore(int(s.in.Fd()), s.was)
}

func (s *screen) size() (columns, rows int) {
	columns, rows, err := term.GetSize(s.fd)
	if err != nil || columns < 1 || rows < 1 {
		return 80, 24
	}
	return columns, rows
}

// typed sends each key that is pressed. It reads on when nobody listens any more, until the process ends.
func (s *screen) typed() <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		in := bufio.NewReader(s.in)
		for {
			b, err := in.ReadByte()
			if err != nil {
				return
			}
			keys <- b
		}
	}()
	return keys
}

// draw shows lines in place of what was shown, in one write so that nothing flickers.
func (s *screen) draw(lines []line, columns, rows int) error {
	var b strings.Builder
	b.WriteString(toTheTop)
	for i, l := range lines[:min(len(lines), rows)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		text := cut(l.text, columns)
		switch l.style {
		case styleTitle:
			text = bold + text + plainAgain
		case styleHead:
			text = reverse + pad(text, columns, false) + plainAgain
		case styleAlarm:
			text = alarm + text + plainAgain
		}
		b.WriteString(text)
		if cells(l.text) < columns && l.style != styleHead { // else it would take the last column away
			b.WriteString(endOfLine)
		}
	}
	if len(lines) < rows {
		b.WriteString("\r\n" + restOfAll)
	}
	_, err := io.WriteString(s.out, b.String())
	return err
}

// line is a line of a screen.
type line struct {
	text  string
	style style
}

type style int

const (
	stylePlain style = iota
	styleTitle
	styleHead
	styleAlarm
)

// cells is how many columns a text takes.
func cells(s string) (n int) {
	for _, r := range s {
		n += cellsOf(r)
	}
	return n
}

// wide are the blocks whose characters take two columns, by Unicode's East Asian Width.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1},
		{Lo: 0x2e80, Hi: 0x303e, Stride: 1},
		{Lo: 0x3041, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xa960, Hi: 0xa97f, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1},
		{Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1},
		{Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0x1f300, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}

func cellsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// cut is the beginning of a text, and an ellipsis if there was more.
func cut(s string, columns int) string {
	if cells(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += cellsOf(r); n > columns-1 {
			return s[:i] + strings.Repeat(" ", max(0, columns-1-n+cellsOf(r))) + "…"
		}
	}
	return s
}

// pad is a text that is as wide as columns.
func pad(s string, columns int, right bool) string {
	s = cut(s, columns)
	space := strings.Repeat(" ", max(0, columns-cells(s)))
	if right {
		return space + s
	}
	return s + space
}
