package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/delayqueue"
)

func (t *tool) topCommand() *cli.Command {
	return &cli.Command{
		Name: "top", Usage: "show what all processes with a beacon do, and refresh it", ArgsUsage: " ",
		Description: "Hot keys, the oldest leases, the longest waits, queues and what happened last. Without a terminal, and with -o json, it shows them once.\n" +
			"It ends with q or Ctrl-C. It reads the reports of processes, one every 10 s: it can miss keys that are held for less.",
		Flags:  []cli.Flag{&cli.DurationFlag{Name: "every", Value: 2 * time.Second, Usage: "this `TIME`, 1s or more; longer if reading takes more than a tenth of it"}},
		Action: t.top,
	}
}

const (
	// readWithin is how long a read may take until what is shown counts as stale.
	readWithin = 1800 * time.Millisecond
	redraw     = 200 * time.Millisecond // of another size of the terminal, or of times
	plainRows  = 20                     // of a list, where there is no terminal
)

func (t *tool) top(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	every := c.Duration("every")
	if every < time.Second {
		return usagef("--every %s: expected 1s or more", every)
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	view := &topView{where: t.where, prefix: t.prefix}
	s, isTerminal := newScreen(os.Stdin, t.out)
	if isTerminal && !isJSON(c) {
		return t.topScreen(ctx, s, view, every)
	}
	f, err := t.readFleet(ctx, map[string]*delayqueue.Queue{})
	if err != nil {
		return err
	}
	view.read(f, time.Now())
	if isJSON(c) {
		return t.json(view.json())
	}
	for _, l := range view.plain(plainRows, time.Now()) {
		t.printf("%s\n", strings.TrimRight(l.text, " "))
	}
	return nil
}

// reading is the answer to a read of the fleet.
type reading struct {
	fleet *fleetState
	err   error
	took  time.Duration
}

func (t *tool) topScreen(ctx context.Context, s *screen, view *topView, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	readings, known := make(chan reading, 1), map[string]*delayqueue.Queue{}
	read := func() { // one at a time
		began := time.Now()
		f, err := t.readFleet(ctx, known)
		readings <- reading{f, err, time.Since(began)}
	}
	go read()
	keys, asked := s.typed(), time.Now()
	next, tick := time.NewTimer(every), time.NewTicker(redraw)
	next.Stop()
	defer next.Stop()
	defer tick.Stop()
	for {
		select {
		case r := <-readings:
			asked = time.Time{}
			if view.problem = r.err; r.err == nil {
				view.read(r.fleet, time.Now())
			}
			next.Reset(max(every, 10*r.took))
		case <-next.C:
			asked = time.Now()
			go read()
		case <-tick.C:
		case key, open := <-keys:
			if !open || key == 'q' || key == 'Q' || key == 3 || key == 4 { // Ctrl-C and Ctrl-D come as bytes
				return nil
			}
		case <-ctx.Done():
			return nil
		}
		view.late = !asked.IsZero() && time.Since(asked) > readWithin
		columns, rows := s.size()
		if err := s.draw(view.screen(columns, rows, time.Now()), columns, rows); err != nil {
			return fmt.Errorf("the terminal: %w", err)
		}
	}
}
