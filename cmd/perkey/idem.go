package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops"
)

func (t *tool) idemCommand() *cli.Command {
	which := []cli.Flag{
		&cli.StringFlag{Name: "route", Usage: "the route as it is registered, such as \"POST /payments/{id}\""},
		&cli.StringFlag{Name: "principal", Usage: "who sent the request; empty if the route does not look at that"},
		&cli.StringFlag{Name: "key", Usage: "its Idempotency-Key, without quotes"},
	}
	return &cli.Command{
		Name: "idem", Usage: "whether a request with an Idempotency-Key ran",
		Commands: []*cli.Command{
			{Name: "show", Usage: "what is known of a request", ArgsUsage: "--route ROUTE --principal WHO --key KEY", Action: t.idemShow, Flags: which},
			{
				Name: "forget", Usage: "forget a request, so that it runs again if it is sent again", Action: t.idemForget,
				ArgsUsage:   "--route ROUTE --principal WHO --key KEY --seen STATE --reason TEXT",
				Description: "A running request is not stopped. The audit has the route, but neither the principal nor the key.",
				Flags:       append(which[:3:3], &cli.StringFlag{Name: "seen", Usage: "the state that show printed: parked, begun or done; if it has changed, nothing is done"}, reasonFlag()),
			},
		},
	}
}

func (t *tool) request(c *cli.Command) (ops.Request, error) {
	if _, err := args(c, 0, 0); err != nil {
		return ops.Request{}, err
	}
	r := ops.Request{Route: c.String("route"), Principal: c.String("principal"), Key: c.String("key")}
	if r.Route == "" || r.Key == "" {
		return r, usagef("%s: --route and --key are needed", c.FullName())
	}
	return r, nil
}

type idemJSON struct {
	State   string     `json:"state"`
	Ticket  string     `json:"ticket,omitempty"`
	Queue   string     `json:"queue,omitempty"`
	Expires *time.Time `json:"ticket_expires,omitempty"`
}

// stateTexts say what the states mean.
var stateTexts = map[string]string{
	"unknown": "nothing is known: it never arrived, or was forgotten",
	"parked":  "it was parked, and has not begun",
	"begun":   "it has begun, and has no response: it runs, or its process died",
	"done":    "it ran; its response is stored, and is what a repetition gets",
}

func (t *tool) idemShow(ctx context.Context, c *cli.Command) error {
	r, err := t.request(c)
	if err != nil {
		return err
	}
	o, err := t.connectOperator(ctx, c)
	if err != nil {
		return err
	}
	record, err := o.Lookup(ctx, r)
	if err != nil {
		return err
	}
	state := ops.RecordState(record)
	j := idemJSON{State: state, Ticket: record.Ticket.ID, Queue: record.Ticket.Queue}
	if j.Ticket != "" {
		j.Expires = timeJSON(record.Ticket.ExpiresAt)
	}
	if isJSON(c) {
		return t.json(j)
	}
	t.field("state", "%s: %s", state, stateTexts[state])
	if j.Ticket != "" {
		t.field("ticket", "%s in queue %s, which expires %s", quote(j.Ticket), quote(j.Queue), ago(record.Ticket.ExpiresAt, time.Now()))
	}
	return nil
}

func (t *tool) idemForget(ctx context.Context, c *cli.Command) error {
	r, err := t.request(c)
	if err != nil {
		return err
	}
	seen := c.String("seen")
	if _, known := stateTexts[seen]; !known || seen == "unknown" {
		return usagef("perkey idem forget: --seen parked, begun or done is needed: what perkey idem show said")
	}
	why, err := by(c)
	if err != nil {
		return err
	}
	o, err := t.connectOperator(ctx, c)
	if err == nil {
		err = o.Forget(ctx, why, r, seen)
	}
	if err != nil {
		return err
	}
	return t.done(c, "%s", fmt.Sprintln("Forgotten: the request runs again if it is sent again."))
}
