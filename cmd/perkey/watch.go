package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops"
)

const flagFor = "for"

func (t *tool) watchCommand() *cli.Command {
	return &cli.Command{
		Name: "watch", Usage: "what happens to a key in all processes with a beacon, as it happens", ArgsUsage: "KEY",
		Description: "A process reports events of the key within some 10 s, and then at most 200 a second. It ends with Ctrl-C, or by its time.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "prefix-of-keys", Aliases: []string{"p"}, Usage: "every key that begins with KEY, all of them if it is ''"},
			&cli.DurationFlag{Name: flagFor, Value: 10 * time.Minute, Usage: "for this `TIME`, 10m at most"},
		},
		Action: t.watch,
	}
}

type eventJSON struct {
	At      time.Time `json:"at"`
	Process string    `json:"process"`
	Source  string    `json:"source"`
	Kind    string    `json:"kind"`
	keyJSON
	Queue  string  `json:"queue,omitempty"`
	Name   string  `json:"name,omitempty"`
	ID     string  `json:"id,omitempty"`
	Fence  int64   `json:"fence,omitempty"`
	Took   float64 `json:"took_s,omitempty"`
	Detail string  `json:"detail,omitempty"`
	Count  int64   `json:"count,omitempty"` // more than 1: it is the first of so many
}

func (t *tool) watch(ctx context.Context, c *cli.Command) error {
	all, err := args(c, 1, 1)
	if err != nil {
		return err
	}
	keys := ops.Watched{Prefix: c.Bool("prefix-of-keys"), For: c.Duration(flagFor)}
	if keys.Prefix {
		keys.Key, err = unquoted(c, all[0])
	} else {
		keys.Key, err = checkedKey(c, all[0])
	}
	if err != nil {
		return err
	}
	if keys.For < time.Second || keys.For > 10*time.Minute {
		return usagef("--for %s: expected 1s to 10m", keys.For)
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	w, err := ops.Watch(ctx, t.rdb, t.prefix, keys)
	if errors.Is(err, ops.ErrTooManyWatches) {
		return fmt.Errorf("%w: try again when one has ended", err)
	} else if err != nil {
		return err
	}
	defer w.Close()
	_, _ = fmt.Fprintf(t.errOut, "watching for %s; each process reports within some 10 s\n", keys.For)
	missing := int64(0)
	for e := range w.Events() {
		if n := w.Dropped(); n > missing {
			_, _ = fmt.Fprintf(t.errOut, "%s missing: too many at once\n", plural(n-missing, "event is", "events are"))
			missing = n
		}
		if !isJSON(c) {
			t.printf("%s\n", eventText(e))
		} else if err := t.json(eventOf(e)); err != nil {
			return err
		}
	}
	return nil
}

func eventOf(e ops.Event) eventJSON {
	j := eventJSON{e.At.UTC(), e.Process, e.Source, e.Kind, keyOf(e.Key), e.Queue, e.Name, e.ID, e.Fence, e.Took.Seconds(), e.Detail, 0}
	if e.Count > 1 {
		j.Count = e.Count
	}
	return j
}

// eventText is an event in one line: when, where, what, and the rest as far as there is any.
func eventText(e ops.Event) string {
	words := []string{e.At.Local().Format("15:04:05.000"), processName(e.Process), quote(e.Kind), quote(e.Key)}
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+" "+quote(value))
		}
	}
	add("queue", e.Queue)
	add("for", e.Name)
	add("id", e.ID)
	if e.Fence != 0 {
		words = append(words, fmt.Sprint("fence ", e.Fence))
	}
	if e.Took > 0 {
		words = append(words, span(e.Took))
	}
	add("because", e.Detail)
	return strings.Join(words, "  ")
}
