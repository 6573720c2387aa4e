package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

func (t *tool) showCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "who has a key, who waits for it, what is parked, and what taking it would do", ArgsUsage: "KEY",
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
	At            time.Time         `json:"at"`
	Mode          core.Mode         `json:"mode,omitempty"`
	UnknownFormat bool              `json:"unknown_format,omitempty"`
	Held          int               `json:"held"`
	Holders       []holderJSON      `json:"holders"`
	Waiting       int               `json:"waiting"`
	Waiters       []participantJSON `json:"waiters"`
	Reserved      float64           `json:"reserved_s,omitempty"`
	Parked        []parkedJSON      `json:"parked"`
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
		keyJSON: keyOf(k.Key), At: k.At.UTC(), Mode: k.Mode, UnknownFormat: k.UnknownFormat, Held: k.Held, Waiting: k.Waiting, Reserved: k.Reserved.Seconds(),
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
	case k.UnknownFormat:
		t.field("held", "by a record that this version cannot read: a newer version's, or another program's")
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
		left := span(h.Remaining) + " left"
		if h.Remaining < 0 {
			left = "without an end until it is renewed: the record has lost its expiry (free it with perkey unlock)"
		}
		t.field("holder", "%s, for %s, %s of %s", processName(h.Locker), span(k.At.Sub(h.Since)), left, lease)
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
