package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/core"
)

func (t *tool) lsCommand() *cli.Command {
	return &cli.Command{
		Name: "ls", Usage: "the keys that are held, waited for or reserved", ArgsUsage: "[PREFIX]",
		Description: "It reads all names in Redis, slowly: a million take some 20 s, and it uses a twentieth of Redis's time. ^C stops it.",
		Flags:       []cli.Flag{&cli.IntFlag{Name: "limit", Value: 1000, Usage: "stop after `N` keys"}},
		Action:      t.ls,
	}
}

type lsJSON struct {
	keyJSON
	Mode          core.Mode  `json:"mode,omitempty"`
	UnknownFormat bool       `json:"unknown_format,omitempty"`
	Held          int        `json:"held"`
	Waiting       int        `json:"waiting"`
	Since         *time.Time `json:"since,omitempty"`
	Fence         int64      `json:"fence,omitempty"`
	Reserved      float64    `json:"reserved_s,omitempty"`
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
		return usagef("perkey ls: --limit %d: expected 1 or more", limit)
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
	entry := lsJSON{keyJSON: keyOf(k.Key), Mode: k.Mode, UnknownFormat: k.UnknownFormat, Held: k.Held, Waiting: k.Waiting, Reserved: k.Reserved.Seconds()}
	if len(k.Holders) > 0 {
		h := k.Holders[0]
		if since = span(k.At.Sub(h.Since)); h.Remaining >= 0 {
			left = span(h.Remaining)
		}
		entry.Since, entry.Fence = timeJSON(h.Since), h.Fence
	}
	if l.json {
		return l.tool.json(entry)
	}
	mode := string(k.Mode)
	switch {
	case k.UnknownFormat:
		mode = "unknown"
	case k.Free() && k.Reserved > 0:
		mode, left = "reserved", span(k.Reserved)
	case k.Free():
		mode = "free"
	}
	l.line(mode, fmt.Sprint(k.Held), fmt.Sprint(k.Waiting), since, left, quote(k.Key))
	return nil
}
