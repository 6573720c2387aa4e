package main

import (
	"context"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops"
)

func (t *tool) auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "who changed what",
		Commands: []*cli.Command{{
			Name: "ls", Usage: "the latest changes by operators, the latest first", Action: t.auditLs,
			Flags: []cli.Flag{&cli.IntFlag{Name: "limit", Value: 20, Usage: "show `N`, 1 to 1000"}},
		}},
	}
}

type changeJSON struct {
	ID      string     `json:"id"`
	At      time.Time  `json:"at"`
	Action  ops.Action `json:"action"`
	Key     *keyJSON   `json:"key,omitempty"`
	Queue   string     `json:"queue,omitempty"`
	Message string     `json:"message,omitempty"`
	Detail  string     `json:"detail,omitempty"`
	Seen    string     `json:"seen,omitempty"`
	Who     string     `json:"who"`
	Why     string     `json:"why"`
	Outcome string     `json:"outcome,omitempty"`
}

func (t *tool) auditLs(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	limit := c.Int("limit")
	if limit < 1 || limit > 1000 {
		return usagef("perkey audit ls: --limit %d: expected 1 to 1000", limit)
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	audit, err := ops.NewAudit(t.rdb, t.prefix, nil)
	if err != nil {
		return err
	}
	all, err := audit.List(ctx, limit)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, a := range all {
		if isJSON(c) {
			j := changeJSON{a.ID, a.At.UTC(), a.Action, nil, a.Queue, a.Message, a.Detail, a.Seen, a.Who, a.Why, a.Outcome}
			if a.Key != "" {
				key := keyOf(a.Key)
				j.Key = &key
			}
			if err := t.json(j); err != nil {
				return err
			}
			continue
		}
		t.printf("%s  %s  by %s\n", ago(a.At, now), quote(string(a.Action)), quote(a.Who))
		for _, one := range []struct{ name, text string }{
			{"key", a.Key}, {"queue", a.Queue}, {"message", a.Message},
		} {
			if one.text != "" {
				t.field("  "+one.name, "%s", quote(one.text))
			}
		}
		outcome := a.Outcome
		if outcome == "" {
			outcome = "not known: it is under way, or its process died"
		}
		for _, one := range []struct{ name, text string }{{"detail", a.Detail}, {"seen", a.Seen}, {"why", a.Why}, {"outcome", outcome}} {
			if one.text != "" {
				t.field("  "+one.name, "%s", oneLine(one.text))
			}
		}
	}
	if len(all) == 0 && !isJSON(c) {
		t.printf("No change was made.\n")
	}
	return nil
}
