package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

func (t *tool) showCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "who has a key, who waits for it, what is parked, and what happens if one takes it", ArgsUsage: "KEY",
		Action: t.show,
	}
}

// parkedMost is how many of a key's messages are looked at in a queue.
const parkedMost = 100

type parkedJSON struct {
	Queue  string     `json:"queue"`
	Count  int        `json:"count"`
	More   bool       `json:"more,omitempty"`
	Oldest *time.Time `json:"oldest_enqueued,omitempty"`
	Error  string     `json:"error,omitempty"` // why it is not known
}

type participantJSON struct {
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Mode  core.Mode `json:"mode"`
	Limit int       `json:"limit"`
	Name  string    `json:"name,omitempty"`
	ID    string    `json:"id,omitempty"`
}

type holderJSON struct {
	participantJSON
	Fence int64     `json:"fence"`
	Since time.Time `json:"since"`
	TTL   float64   `json:"ttl_s,omitempty"` // 0: not known
	Left  float64   `json:"lease_left_s"`
}

type showJSON struct {
	keyJSON
	At       time.Time         `json:"at"`
	Mode     core.Mode         `json:"mode,omitempty"`
	Foreign  bool              `json:"foreign,omitempty"`
	Held     int               `json:"held"`
	Holders  []holderJSON      `json:"holders"`
	Waiting  int               `json:"waiting"`
	Waiters  []participantJSON `json:"waiters"`
	Reserved float64           `json:"reserved_s,omitempty"`
	Parked   []parkedJSON      `json:"parked"`
}

func (t *tool) show(ctx context.Context, c *cli.Command) error {
	key, err := keyArg(c)
	if err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	info, err := t.locker.Inspect(ctx, key)
	if err != nil {
		return err
	}
	parked, err := t.parked(ctx, key)
	if err != nil {
		return err
	}
	if isJSON(c) {
		return t.json(showOf(info, parked))
	}
	t.showText(info, parked)
	return nil
}

// parked tells what is parked under a key, queue by queue.
func (t *tool) parked(ctx context.Context, key string) (all []parkedJSON, err error) {
	queues, err := delayqueue.Queues(ctx, t.rdb, t.prefix)
	if err != nil {
		return nil, err
	}
	for _, info := range queues {
		if info.Err != nil {
			all = append(all, parkedJSON{Queue: info.Name, Error: info.Err.Error()})
			continue
		}
		q, err := delayqueue.Open(ctx, t.rdb, info.Name, delayqueue.WithPrefix(t.prefix))
		if err != nil {
			return nil, err
		}
		line, next, err := q.Line(ctx, key, "", parkedMost)
		if err != nil {
			return nil, err
		}
		if len(line) > 0 || next != "" {
			p := parkedJSON{Queue: info.Name, Count: len(line), More: next != ""}
			for _, e := range line {
				if at := timeJSON(e.EnqueuedAt); at != nil && (p.Oldest == nil || at.Before(*p.Oldest)) {
					p.Oldest = at
				}
			}
			all = append(all, p)
		}
	}
	return all, nil
}

func participantOf(p core.Participant) participantJSON {
	return participantJSON{Host: p.Host, PID: p.PID, Mode: p.Mode, Limit: p.Limit, Name: p.Name, ID: p.ID}
}

func showOf(k *core.KeyInfo, parked []parkedJSON) showJSON {
	s := showJSON{
		keyJSON: keyOf(k.Key), At: k.At.UTC(), Mode: k.Mode, Foreign: k.Foreign, Held: k.Held, Waiting: k.Waiting, Reserved: k.Reserved.Seconds(),
		Holders: []holderJSON{}, Waiters: []participantJSON{}, Parked: append([]parkedJSON{}, parked...),
	}
	for _, h := range k.Holders {
		s.Holders = append(s.Holders, holderJSON{participantOf(h.Participant), h.Fence, h.Since.UTC(), h.TTL.Seconds(), h.Remaining.Seconds()})
	}
	for _, w := range k.Waiters {
		s.Waiters = append(s.Waiters, participantOf(w.Participant))
	}
	return s
}

// shown is how many holders, and waiters, are shown as text.
const shown = 20

func (t *tool) showText(k *core.KeyInfo, parked []parkedJSON) {
	t.field("key", "%s", quote(k.Key))
	switch {
	case k.Foreign:
		t.field("held", "by a record that this perkey cannot read: a newer one's, or foreign")
	case k.Free():
		t.field("held", "by nobody")
	default:
		t.field("mode", "%s", modeText(k))
	}
	for i, h := range k.Holders {
		if i == shown {
			t.field("", "… and %d more", k.Held-i)
			break
		}
		lease := "its lease"
		if h.TTL > 0 {
			lease = "a lease of " + span(h.TTL)
		}
		t.field("holder", "%s, for %s, %s left of %s", processName(h.Locker), span(k.At.Sub(h.Since)), span(h.Remaining), lease)
		t.named(h.Participant)
		t.field("", "fence %d", h.Fence)
	}
	if k.Waiting == 0 {
		t.field("waiting", "nobody")
	}
	for i, w := range k.Waiters {
		if i == shown {
			t.field("", "… and %d more", k.Waiting-i)
			break
		}
		t.field("waiting", "%d. %s, %s", i+1, processName(w.Locker), w.Mode)
		t.named(w.Participant)
	}
	if k.Reserved > 0 {
		t.field("reserved", "for parked work, for %s more", span(k.Reserved))
	}
	if len(parked) == 0 {
		t.field("parked", "nothing")
	}
	for _, p := range parked {
		if p.Error != "" {
			t.field("parked", "not known in %s, which has another layout", quote(p.Queue))
			continue
		}
		more := ""
		if p.More {
			more = " or more"
		}
		old := ""
		if p.Oldest != nil {
			old = ", the oldest since " + span(k.At.Sub(*p.Oldest))
		}
		t.field("parked", "%d%s in %s%s", p.Count, more, quote(p.Queue), old)
	}
	t.ifTaken(k, slices.ContainsFunc(parked, func(p parkedJSON) bool { return p.Error == "" }))
}

// named shows what a process said of itself.
func (t *tool) named(p core.Participant) {
	if p.Name != "" || p.ID != "" {
		t.field("", "for %s, id %s", quote(p.Name), quote(p.ID))
	}
}

func modeText(k *core.KeyInfo) string {
	switch k.Mode {
	case core.ModeShared:
		return fmt.Sprintf("shared, by %d", k.Held)
	case core.ModeCounted:
		limit := 0
		for _, h := range k.Holders {
			limit = h.Limit
		}
		return fmt.Sprintf("counted, %d of %d", k.Held, limit)
	default:
		return string(k.Mode)
	}
}

// ifTaken says what happens if an operator takes the key.
func (t *tool) ifTaken(k *core.KeyInfo, parked bool) {
	if len(k.Holders) == 0 {
		return
	}
	next := "Then nobody has the key."
	switch {
	case len(k.Holders) > 1:
		next = "The other holders stay."
	case k.Reserved > 0:
		next = "Then the parked work has it."
	case k.Waiting > 0:
		next = fmt.Sprintf("Then %s has it.", processName(k.Waiters[0].Locker))
	case parked:
		next = "Then the parked work has it, or whoever asks first."
	}
	h := k.Holders[0]
	t.printf("\nTo take it from %s, though its lease is not over:\n", processName(h.Locker))
	t.printf("  perkey unlock %s --fence %d --reason TEXT\n", shell(k.Key), h.Fence)
	t.printf("%s\n", next)
	t.printf("%s\n", notStopped)
}

const notStopped = `The code of the holder is not stopped: it learns that its lease is lost, and may
go on. Writes that check the fence are safe from it; others can happen twice.`

func (t *tool) unlockCommand() *cli.Command {
	return &cli.Command{
		Name: "unlock", Usage: "take a key from the holder that has a fence", ArgsUsage: "KEY --fence N --reason TEXT",
		Description: "The next that waits gets the key. " + notStopped,
		Flags:       []cli.Flag{&cli.Int64Flag{Name: "fence", Usage: "the fence `N` of the holder, as show has it"}, reasonFlag()},
		Action:      t.unlock,
	}
}

func (t *tool) unlock(ctx context.Context, c *cli.Command) error {
	key, err := keyArg(c)
	if err != nil {
		return err
	}
	fence := c.Int64("fence")
	if fence <= 0 {
		return usagef("perkey unlock: --fence N is needed, so that a later holder keeps the key: see perkey show %s", shell(key))
	}
	why, err := by(c)
	if err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	o, err := t.operator()
	if err != nil {
		return err
	}
	if err := o.Unlock(ctx, why, key, fence); err != nil {
		return err
	}
	info, err := t.locker.Inspect(ctx, key)
	if err != nil {
		return fmt.Errorf("the key was taken; then: %w", err)
	}
	if isJSON(c) {
		return t.json(struct {
			keyJSON
			Unlocked bool `json:"unlocked"`
			Now      any  `json:"now"`
		}{keyOf(key), true, showOf(info, nil)})
	}
	t.printf("Taken: the holder with fence %d does not have %s any more.\n", fence, quote(key))
	if info.Free() {
		t.printf("Nobody has it now.\n")
	}
	for _, h := range info.Holders {
		t.printf("%s has it now, with fence %d.\n", processName(h.Locker), h.Fence)
	}
	t.printf("%s\n", notStopped)
	return nil
}

func (t *tool) lsCommand() *cli.Command {
	return &cli.Command{
		Name: "ls", Usage: "the keys that are held, waited for or reserved", ArgsUsage: "[PREFIX]",
		Description: "It goes through all names of the Redis, slowly: a million take some 20 s, and a twentieth of its time. ^C stops it.",
		Flags:       []cli.Flag{&cli.IntFlag{Name: "limit", Value: 1000, Usage: "stop after `N` keys"}},
		Action:      t.ls,
	}
}

type lsJSON struct {
	keyJSON
	Mode     core.Mode  `json:"mode,omitempty"`
	Foreign  bool       `json:"foreign,omitempty"`
	Held     int        `json:"held"`
	Waiting  int        `json:"waiting"`
	Since    *time.Time `json:"since,omitempty"`
	Fence    int64      `json:"fence,omitempty"`
	Reserved float64    `json:"reserved_s,omitempty"`
}

func (t *tool) ls(ctx context.Context, c *cli.Command) error {
	all, err := args(c, 0, 1)
	if err != nil {
		return err
	}
	begin := ""
	if len(all) == 1 {
		if begin, err = unquoted(c, all[0]); err != nil {
			return err
		}
	}
	limit := c.Int("limit")
	if limit < 1 {
		return usagef("perkey ls: --limit %d: want 1 or more", limit)
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	l := lister{tool: t, begin: begin, left: limit, json: isJSON(c), seen: map[string]bool{}}
	err = l.all(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped after %s: there may be more", plural(int64(len(l.seen)), "key", "keys"))
	case err != nil:
		return err
	case l.left == 0:
		_, _ = fmt.Fprintf(t.errOut, "perkey: the first %d; --limit shows more\n", limit)
	case len(l.seen) == 0 && !l.json:
		t.printf("No key is in use.\n")
	}
	return nil
}

// lister writes keys while they are found.
type lister struct {
	*tool
	begin string
	left  int
	json  bool
	seen  map[string]bool // a key can be on two pages
}

func (l *lister) all(ctx context.Context) error {
	for cursor := ""; ; {
		page, err := l.locker.List(ctx, cursor, 100)
		if err != nil {
			return err
		}
		for _, k := range page.Keys {
			if l.seen[k.Key] || len(k.Key) < len(l.begin) || k.Key[:len(l.begin)] != l.begin {
				continue
			}
			if !l.json && len(l.seen) == 0 {
				l.line("MODE", "HELD", "WAIT", "AGE", "LEFT", "KEY")
			}
			l.seen[k.Key] = true
			if err := l.write(k); err != nil {
				return err
			}
			if l.left--; l.left == 0 {
				return nil
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

func (l *lister) line(mode, held, waiting, since, left, key string) {
	l.printf("%-9s  %4s  %4s  %7s  %7s  %s\n", mode, held, waiting, since, left, key)
}

func (l *lister) write(k *core.KeyInfo) error {
	since, left := "-", "-"
	entry := lsJSON{keyJSON: keyOf(k.Key), Mode: k.Mode, Foreign: k.Foreign, Held: k.Held, Waiting: k.Waiting, Reserved: k.Reserved.Seconds()}
	if len(k.Holders) > 0 {
		h := k.Holders[0]
		since, left = span(k.At.Sub(h.Since)), span(h.Remaining)
		entry.Since, entry.Fence = timeJSON(h.Since), h.Fence
	}
	if l.json {
		return l.tool.json(entry)
	}
	mode := string(k.Mode)
	switch {
	case k.Foreign:
		mode = "unknown"
	case k.Free() && k.Reserved > 0:
		mode, left = "reserved", span(k.Reserved)
	case k.Free():
		mode = "free"
	}
	l.line(mode, fmt.Sprint(k.Held), fmt.Sprint(k.Waiting), since, left, quote(k.Key))
	return nil
}
