package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

func (t *tool) queueCommand() *cli.Command {
	return &cli.Command{
		Name: "queue", Usage: "look at delay queues, and pause them",
		Commands: []*cli.Command{
			{Name: "ls", Usage: "the queues, and how far behind they are", Action: t.queueLs},
			{Name: "stats", Usage: "what is in a queue", ArgsUsage: "QUEUE", Action: t.queueStats},
			{
				Name: "line", Usage: "a key's messages, in the order in which they run", ArgsUsage: "QUEUE KEY", Action: t.queueLine,
				Flags: []cli.Flag{&cli.IntFlag{Name: "limit", Value: 50, Usage: "show `N` messages, 1 to 1000"}},
			},
			{
				Name: "pause", Usage: "keep workers from starting messages, for a time", ArgsUsage: "QUEUE --for TIME --reason TEXT", Action: t.queuePause,
				Description: "Running messages go on. Queued messages age meanwhile, and expire when they are too old. The pause ends by itself.",
				Flags:       []cli.Flag{&cli.DurationFlag{Name: "for", Usage: "how long, such as 10m: 1 s to 366 days"}, reasonFlag()},
			},
			{Name: "resume", Usage: "end a pause", ArgsUsage: "QUEUE --reason TEXT", Action: t.queueResume, Flags: []cli.Flag{reasonFlag()}},
		},
	}
}

type queueJSON struct {
	Name        string             `json:"name"`
	Service     string             `json:"service,omitempty"`
	Encrypted   bool               `json:"encrypted,omitempty"`
	Partitions  int                `json:"partitions,omitempty"`
	Error       string             `json:"error,omitempty"`
	Queued      int64              `json:"queued"`
	Running     int64              `json:"running"`
	Dead        int64              `json:"dead"`
	Due         int64              `json:"due"`
	Lateness    float64            `json:"lateness_s"`
	PausedUntil *time.Time         `json:"paused_until,omitempty"`
	HaltedKeys  int64              `json:"halted_keys,omitempty"`
	Bytes       int64              `json:"bytes"`
	Totals      *delayqueue.Totals `json:"totals,omitempty"`
}

// statsOf asks a queue for its counts.
func (t *tool) statsOf(ctx context.Context, info delayqueue.Info) (j queueJSON, s delayqueue.Stats, err error) {
	j = queueJSON{Name: info.Name, Service: info.Service, Encrypted: info.Encrypted, Partitions: info.Partitions}
	if info.Err != nil {
		j.Error = info.Err.Error()
		return j, s, nil //nolint:nilerr // one that cannot be read hides no other
	}
	q, err := t.queue(ctx, info.Name)
	if err == nil {
		s, err = q.Stats(ctx)
	}
	if err != nil {
		return j, s, err
	}
	j.Queued, j.Running, j.Dead, j.Due, j.Lateness = s.Queued, s.Running, s.Dead, s.Due, s.Lateness.Seconds()
	j.HaltedKeys, j.Bytes, j.PausedUntil = s.Halted, s.Bytes, timeJSON(s.PausedUntil)
	return j, s, nil
}

func (t *tool) queueLs(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	queues, err := delayqueue.Queues(ctx, t.rdb, t.prefix)
	if err != nil {
		return err
	}
	all, rows := []queueJSON{}, []row{}
	for _, info := range queues {
		j, s, err := t.statsOf(ctx, info)
		if err != nil {
			return err
		}
		all = append(all, j)
		state := ""
		switch {
		case j.Error != "":
			state = "another layout"
		case s.Paused:
			state = pausedText(s)
		case s.Halted > 0:
			state = plural(s.Halted, "key halted", "keys halted")
		}
		rows = append(rows, row{quote(j.Name), fmt.Sprint(j.Queued), fmt.Sprint(j.Running), fmt.Sprint(j.Due), lateText(s), fmt.Sprint(j.Dead), state})
	}
	if isJSON(c) {
		return t.json(all)
	}
	if len(rows) == 0 {
		t.printf("No queue is known under the prefix %s.\n", quote(t.prefix))
		return nil
	}
	t.table(row{"QUEUE", "QUEUED", "RUNNING", "DUE", "LATE", "DEAD", ""}, rows, 1, 2, 3, 4, 5)
	return nil
}

func pausedText(s delayqueue.Stats) string {
	return "paused for " + span(time.Until(s.PausedUntil)) + " more"
}

// lateText is for how long the first message could have started; "-" if none could.
func lateText(s delayqueue.Stats) string {
	if s.Due == 0 {
		return "-"
	}
	return span(s.Lateness)
}

func (t *tool) queueStats(ctx context.Context, c *cli.Command) error {
	q, err := t.queueArg(ctx, c)
	if err != nil {
		return err
	}
	info, err := q.Info(ctx)
	if err != nil {
		return err
	}
	j, s, err := t.statsOf(ctx, info)
	if err != nil {
		return err
	}
	j.Totals = &s.Totals
	if isJSON(c) {
		return t.json(j)
	}
	t.field("queue", "%s", quote(j.Name))
	if j.Service != "" {
		t.field("service", "%s", quote(j.Service))
	}
	parts := plural(int64(j.Partitions), "partition", "partitions")
	if j.Encrypted {
		parts += ", encrypted"
	}
	t.field("made of", "%s", parts)
	t.field("queued", "%d, of which %d could start now", s.Queued, s.Due)
	if s.Due > 0 {
		t.field("late", "the first of them could have started %s ago", span(s.Lateness))
	}
	t.field("running", "%d", s.Running)
	t.field("dead", "%d", s.Dead)
	if s.Paused {
		t.field("paused", "for %s more", span(time.Until(s.PausedUntil)))
	}
	if s.Halted > 0 {
		t.field("halted", "%s, by a dead letter: redrive or purge it", plural(s.Halted, "key", "keys"))
	}
	t.field("memory", "%s", size(s.Bytes))
	n := s.Totals
	t.field("so far", "%d enqueued, %d done, %d retried, %d expired, %d cancelled,", n.Enqueued, n.Done, n.Retried, n.Expired, n.Cancelled)
	t.field("", "%d superseded, %d died, %d redriven, %d purged", n.Superseded, n.Died, n.Redriven, n.Purged)
	return nil
}

func size(bytes int64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	default:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
}

// queueArg connects, and opens the queue that is the only argument.
func (t *tool) queueArg(ctx context.Context, c *cli.Command) (*delayqueue.Queue, error) {
	all, err := args(c, 1, 1)
	if err != nil {
		return nil, err
	}
	if err := t.connect(ctx, c); err != nil {
		return nil, err
	}
	return t.queue(ctx, all[0])
}

type lineJSON struct {
	entryJSON
	Position int64 `json:"position"`
}

func (t *tool) queueLine(ctx context.Context, c *cli.Command) error {
	all, err := args(c, 2, 2)
	if err != nil {
		return err
	}
	key, err := checkedKey(c, all[1])
	if err != nil {
		return err
	}
	limit := c.Int("limit")
	if limit < 1 || limit > 1000 {
		return usagef("perkey queue line: --limit %d: expected 1 to 1000", limit)
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	q, err := t.queue(ctx, all[0])
	if err != nil {
		return err
	}
	line, next, err := q.Line(ctx, key, "", limit)
	if err != nil {
		return err
	}
	now, rows := time.Now(), []row{}
	for _, e := range line {
		if isJSON(c) {
			if err := t.json(lineJSON{entryOf(e.Entry), e.Position}); err != nil {
				return err
			}
			continue
		}
		place, state := fmt.Sprint(e.Position), string(e.State)
		if e.Position == 0 {
			place, state = "-", "delayed"
		}
		rows = append(rows, row{place, state, ago(e.EnqueuedAt, now), ago(e.ExpiresAt, now), fmt.Sprint(e.Attempts), quote(e.Name), quote(e.ID)})
	}
	if isJSON(c) {
		return nil
	}
	if len(rows) == 0 {
		t.printf("Nothing is queued or running in %s for %s.\n", quote(q.Name()), quote(key))
		return nil
	}
	t.table(row{"PLACE", "STATE", "ENQUEUED", "TOO OLD", "TRIES", "NAME", "ID"}, rows, 0, 4)
	if next != "" {
		t.printf("… and more: --limit\n")
	}
	return nil
}

func (t *tool) queuePause(ctx context.Context, c *cli.Command) error {
	d := c.Duration("for")
	if d < time.Second {
		return usagef("perkey queue pause: --for TIME is needed, such as --for 10m, 1s or more")
	}
	return t.changeQueue(ctx, c, func(o *ops.Operator, why ops.By, queue string) error { return o.Pause(ctx, why, queue, d) },
		"Paused for "+span(d)+": no worker starts a message of %s. What runs goes on.\n")
}

func (t *tool) queueResume(ctx context.Context, c *cli.Command) error {
	return t.changeQueue(ctx, c, func(o *ops.Operator, why ops.By, queue string) error { return o.Resume(ctx, why, queue) },
		"Resumed: workers start messages of %s.\n")
}

// changeQueue makes a change to the queue that is the only argument, and says with format that it was made.
func (t *tool) changeQueue(ctx context.Context, c *cli.Command, change func(*ops.Operator, ops.By, string) error, format string) error {
	why, err := by(c)
	if err != nil {
		return err
	}
	q, err := t.queueArg(ctx, c)
	if err != nil {
		return err
	}
	o, err := t.operator()
	if err == nil {
		err = change(o, why, q.Name())
	}
	if err != nil {
		return err
	}
	return t.done(c, format, quote(q.Name()))
}

// done says that a change was made.
func (t *tool) done(c *cli.Command, format string, args ...any) error {
	if isJSON(c) {
		return t.json(map[string]bool{"done": true})
	}
	t.printf(format, args...)
	return nil
}
