package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

func (t *tool) deadCommand() *cli.Command {
	chosen := []cli.Flag{
		&cli.StringFlag{Name: "id", Usage: "the message with this `ID` alone"},
		&cli.StringFlag{Name: "cause", Usage: "those whose cause has this `TEXT` in it"},
		&cli.StringFlag{Name: "name", Usage: "those of this `NAME`"},
		&cli.StringFlag{Name: "key", Usage: "those of this `KEY`"},
		&cli.DurationFlag{Name: "older", Usage: "those that died longer ago, such as 1h"},
		&cli.DurationFlag{Name: "younger", Usage: "those that died since, such as 1h"},
		&cli.Int64Flag{Name: "count", Usage: "the `N` that --dry-run printed; if it has changed, nothing is done", Value: -1},
		&cli.BoolFlag{Name: "all", Usage: "all dead letters of the queue"},
		&cli.BoolFlag{Name: "dry-run", Usage: "count them, and change nothing"},
		reasonFlag(),
	}
	return &cli.Command{
		Name: "dead", Usage: "look at dead letters, run them again or forget them",
		Commands: []*cli.Command{
			{
				Name: "ls", Usage: "the dead letters of a queue, the latest first", ArgsUsage: "QUEUE", Action: t.deadLs,
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "by", Usage: "cause: count them by name and cause"},
					&cli.IntFlag{Name: "limit", Value: 50, Usage: "show `N`; with --by, count the latest N, by default 10000"},
				},
			},
			{
				Name: "redrive", Usage: "put dead letters back into the queue", ArgsUsage: "QUEUE (--cause … | --id … | --all) --count N --reason TEXT", Action: t.redrive,
				Flags: append(slices.Clone(chosen),
					&cli.FloatFlag{Name: "rate", Value: 10, Usage: "`N` in a second; 0: as fast as Redis takes them"},
					&cli.DurationFlag{Name: "max-age", Value: 15 * time.Minute, Usage: "how long each may be started from now"}),
			},
			{Name: "purge", Usage: "forget dead letters, with their payloads, for good", ArgsUsage: "QUEUE (--cause … | --id … | --all) --count N --reason TEXT", Action: t.purge, Flags: chosen},
		},
	}
}

type entryJSON struct {
	keyJSON
	ID         string           `json:"id"`
	State      delayqueue.State `json:"state"`
	Name       string           `json:"name,omitempty"`
	Attempts   int              `json:"attempts"`
	Conflicts  int              `json:"conflicts"`
	Losses     int              `json:"losses"`
	EnqueuedAt *time.Time       `json:"enqueued_at,omitempty"`
	ExpiresAt  *time.Time       `json:"expires_at,omitempty"`
	EndedAt    *time.Time       `json:"ended_at,omitempty"`
	Cause      string           `json:"cause,omitempty"`
}

// entryOf leaves the principal out: it says who sent the work.
func entryOf(e delayqueue.Entry) entryJSON {
	return entryJSON{
		keyJSON: keyOf(e.Key), ID: e.ID, State: e.State, Name: e.Name, Attempts: e.Attempts, Conflicts: e.Conflicts, Losses: e.Losses,
		EnqueuedAt: timeJSON(e.EnqueuedAt), ExpiresAt: timeJSON(e.ExpiresAt), EndedAt: timeJSON(e.EndedAt), Cause: e.Cause,
	}
}

func (t *tool) deadLs(ctx context.Context, c *cli.Command) error {
	most := c.Int("limit")
	group := c.String("by")
	if group != "" && group != "cause" {
		return usagef("perkey dead ls: --by %s: expected cause", quote(group))
	}
	if group != "" && !c.IsSet("limit") {
		most = 10_000
	}
	if most < 1 {
		return usagef("perkey dead ls: --limit %d: expected 1 or more", most)
	}
	q, err := t.queueArg(ctx, c)
	if err != nil {
		return err
	}
	letters, more, err := letters(ctx, q, most)
	if err != nil {
		return err
	}
	if group != "" {
		err = t.byCause(c, letters)
	} else {
		err = t.letters(c, letters)
	}
	if err == nil && more {
		_, _ = fmt.Fprintf(t.errOut, "perkey: the latest %d; --limit shows more\n", most)
	}
	return err
}

// letters are the latest dead letters, at most so many.
func letters(ctx context.Context, q *delayqueue.Queue, most int) (all []delayqueue.Entry, more bool, err error) {
	for cursor := ""; ; {
		page, next, err := q.List(ctx, delayqueue.StateDead, cursor, min(500, most-len(all)))
		if err != nil {
			return nil, false, err
		}
		all = append(all, page...)
		if next == "" || len(all) >= most {
			return all, next != "", nil
		}
		cursor = next
	}
}

func (t *tool) letters(c *cli.Command, all []delayqueue.Entry) error {
	now, rows := time.Now(), []row{}
	for _, e := range all {
		if isJSON(c) {
			if err := t.json(entryOf(e)); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, row{ago(e.EndedAt, now), fmt.Sprint(e.Attempts), quote(e.Name), quote(e.Key), quote(e.ID)}, row{"", "", "", "", quote(firstLine(e.Cause))})
	}
	if isJSON(c) {
		return nil
	}
	if len(rows) == 0 {
		t.printf("No dead letters.\n")
		return nil
	}
	t.printf("%-12s %5s  %s\n", "DIED", "TRIES", "NAME  KEY  ID, and the cause")
	for i := 0; i < len(rows); i += 2 {
		r := rows[i]
		t.printf("%-12s %5s  %s  %s  %s\n%s%s\n", r[0], r[1], r[2], r[3], r[4], strings.Repeat(" ", 20), clip(rows[i+1][4], 60))
	}
	return nil
}

// firstLine is what a cause begins with: a panic's has a stack.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

type causeJSON struct {
	Count  int        `json:"count"`
	Name   string     `json:"name,omitempty"`
	Cause  string     `json:"cause,omitempty"`
	Latest *time.Time `json:"latest,omitempty"`
}

func (t *tool) byCause(c *cli.Command, all []delayqueue.Entry) error {
	found := map[[2]string]*causeJSON{}
	for _, e := range all { // the latest first
		of := [2]string{e.Name, firstLine(e.Cause)}
		if found[of] == nil {
			found[of] = &causeJSON{Name: of[0], Cause: of[1], Latest: timeJSON(e.EndedAt)}
		}
		found[of].Count++
	}
	groups := []causeJSON{}
	for _, g := range found {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b causeJSON) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name), strings.Compare(a.Cause, b.Cause))
	})
	if isJSON(c) {
		return t.json(groups)
	}
	if len(groups) == 0 {
		t.printf("No dead letters.\n")
		return nil
	}
	now, rows := time.Now(), []row{}
	for _, g := range groups {
		latest := "-"
		if g.Latest != nil {
			latest = ago(*g.Latest, now)
		}
		rows = append(rows, row{fmt.Sprint(g.Count), latest, quote(g.Name), clip(quote(g.Cause), 50)})
	}
	t.table(row{"COUNT", "LATEST", "NAME", "CAUSE"}, rows, 0)
	return nil
}

// chosenLetters are the dead letters that the flags choose.
func (t *tool) chosenLetters(c *cli.Command) (m ops.Messages, err error) {
	all, err := args(c, 1, 1)
	if err != nil {
		return m, err
	}
	m = ops.Messages{Queue: all[0], Count: c.Int64("count"), Filter: delayqueue.Filter{Name: c.String("name"), Cause: c.String("cause")}}
	if m.ID, err = unquoted(c, c.String("id")); err != nil {
		return m, err
	}
	if m.Filter.Key, err = unquoted(c, c.String("key")); err != nil {
		return m, err
	}
	now := time.Now()
	for name, at := range map[string]*time.Time{"older": &m.Filter.DiedBefore, "younger": &m.Filter.DiedFrom} {
		if d := c.Duration(name); d > 0 {
			*at = now.Add(-d)
		} else if c.IsSet(name) {
			return m, usagef("%s: --%s %s: expected a time such as 1h", c.FullName(), name, d)
		}
	}
	some := m.Filter != delayqueue.Filter{}
	switch {
	case m.ID != "" && (some || c.Bool("all")):
		return m, usagef("%s: --id chooses one message: remove the other filters", c.FullName())
	case some && c.Bool("all"):
		return m, usagef("%s: --all chooses every dead letter: remove it, or the other filters", c.FullName())
	case m.ID == "" && !some && !c.Bool("all"):
		return m, usagef("%s: which messages? Give --cause, --name, --key, --older, --younger, --id or --all", c.FullName())
	case m.ID == "" && m.Count < 0 && !c.Bool("dry-run"):
		return m, usagef("%s: --count N is needed: how many you expect, as --dry-run counts them", c.FullName())
	}
	return m, nil
}

// changeLetters counts the letters that the flags choose, or changes them.
func (t *tool) changeLetters(ctx context.Context, c *cli.Command, verb string, change func(*ops.Operator, ops.By, ops.Messages) (int, error)) error {
	m, err := t.chosenLetters(c)
	if err != nil {
		return err
	}
	dry := c.Bool("dry-run")
	var why ops.By
	if !dry {
		if why, err = by(c); err != nil {
			return err
		}
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	q, err := t.queue(ctx, m.Queue)
	if err != nil {
		return err
	}
	if dry {
		return t.dryRun(ctx, c, q, m)
	}
	o, err := t.operator()
	if err != nil {
		return err
	}
	n, err := change(o, why, m)
	if err != nil {
		if n > 0 {
			return fmt.Errorf("%s %s; then: %w", plural(int64(n), "dead letter was", "dead letters were"), verb, err)
		}
		return err
	}
	if isJSON(c) {
		return t.json(map[string]int{verb: n})
	}
	t.printf("%s %s.\n", plural(int64(n), "dead letter was", "dead letters were"), verb)
	return nil
}

func (t *tool) dryRun(ctx context.Context, c *cli.Command, q *delayqueue.Queue, m ops.Messages) error {
	n, exact := int64(0), true
	if m.ID != "" {
		e, err := q.Peek(ctx, m.ID)
		if err != nil {
			return err
		}
		if e.State == delayqueue.StateDead {
			n = 1
		}
	} else {
		var err error
		if n, exact, err = q.Count(ctx, delayqueue.StateDead, m.Filter); err != nil {
			return err
		}
	}
	if isJSON(c) {
		return t.json(map[string]any{"count": n, "exact": exact, "dry_run": true})
	}
	those := plural(n, "dead letter", "dead letters")
	switch {
	case exact:
		t.printf("This would change %s: --count %d. Nothing was changed.\n", those, n)
	case m.Filter == delayqueue.Filter{}:
		t.printf("This would change %s or more: --count %d. Nothing was changed.\n", those, n)
	default:
		t.printf("This would change %s or more, too many to count: choose fewer, with --older and --younger. Nothing was changed.\n", those)
	}
	return nil
}

func (t *tool) redrive(ctx context.Context, c *cli.Command) error {
	opts := delayqueue.RedriveOptions{PerSecond: c.Float("rate"), MaxAge: c.Duration("max-age")}
	if opts.PerSecond < 0 || opts.MaxAge <= 0 {
		return usagef("perkey dead redrive: --rate and --max-age: expected 0 or more, and a time")
	}
	return t.changeLetters(ctx, c, "redriven", func(o *ops.Operator, why ops.By, m ops.Messages) (int, error) {
		return o.Redrive(ctx, why, m, opts)
	})
}

func (t *tool) purge(ctx context.Context, c *cli.Command) error {
	return t.changeLetters(ctx, c, "purged", func(o *ops.Operator, why ops.By, m ops.Messages) (int, error) {
		return o.Purge(ctx, why, m)
	})
}
