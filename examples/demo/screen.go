package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

const (
	frameEvery = 500 * time.Millisecond
	wholeEvery = 10 // frames: the terminal echoes what is typed
	lineEvery  = 5 * time.Second
)

// show shows the board until the returned func is called, or ctx ends: in place on a terminal, and else in a line now and then.
func show(ctx context.Context, out io.Writer, cfg config, board *scoreboard) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if cfg.terminal != nil {
			draw(ctx, out, cfg.terminal, board)
			fmt.Fprintln(out, "ending: what is under way, or parked, still runs")
			return
		}
		fmt.Fprintln(out, board.view().introduction(cfg.once))
		every := time.NewTicker(lineEvery)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				fmt.Fprintln(out, board.view().sentence())
			case <-ctx.Done():
				fmt.Fprintln(out)
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// draw draws the board until ctx ends: of each frame the lines that have changed, and all of them now and then, and when the window has another size. It has a
// screen of its own, so that a terminal keeps what stood there before, and wraps none of this when it is resized.
func draw(ctx context.Context, out io.Writer, terminal *terminal, board *scoreboard) {
	fmt.Fprint(out, enterScreen)
	defer fmt.Fprint(out, leaveScreen)
	resized := make(chan os.Signal, 1)
	notifyResize(resized)
	defer signal.Stop(resized)
	every := time.NewTicker(frameEvery)
	defer every.Stop()

	var was screen
	for frame := 0; ; frame++ {
		columns, rows := terminal.size()
		is := screen{columns: columns, rows: rows}
		for _, l := range board.view().layout(columns-1, rows) { // a full line would leave some cursors on the next one
			is.lines = append(is.lines, l.clipped(columns-1))
		}
		if frame%wholeEvery == 0 {
			was.lines = nil
		}
		fmt.Fprint(out, is.after(was, terminal.colors))
		was = is
		select {
		case <-every.C:
		case <-resized:
		case <-ctx.Done():
			return
		}
	}
}

// screen is what is drawn in a window.
type screen struct {
	columns, rows int
	lines         []line
}

// after is what makes a terminal show s that shows was.
func (s screen) after(was screen, colors bool) string {
	var b strings.Builder
	if s.columns != was.columns || s.rows != was.rows {
		b.WriteString(clearScreen)
		was.lines = nil
	}
	for y := range max(len(s.lines), len(was.lines)) {
		if is := s.line(y); !slices.Equal(is, was.line(y)) {
			b.WriteString(moveTo(y) + is.draw(colors) + clearToEnd)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return beginFrame + b.String() + endFrame
}

// line is row y; nil: it is empty.
func (s screen) line(y int) line {
	if y < len(s.lines) {
		return s.lines[y]
	}
	return nil
}
