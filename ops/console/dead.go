package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/ops"
)

// shownDead is how many dead letters of a queue are looked at, the newest first.
const shownDead = 500

// causeView is the dead letters of a queue that have a name and a cause in common.
type causeView struct {
	Queue, Name, Cause string
	Count              int
	First, Last        time.Time
}

// deadView is the dead letters of a queue.
type deadView struct {
	Queue   string
	Stats   panel[delayqueue.Stats]
	Letters panel[[]delayqueue.Entry]
	Causes  []causeView
}

// causeOf is what letters are grouped by: what a cause begins with. It is a part of the cause, so that a filter finds it.
func causeOf(cause string) string {
	line, _, _ := strings.Cut(cause, "\n")
	if len(line) <= 120 {
		return line
	}
	line = line[:120]
	for !utf8.ValidString(line) && len(line) > 116 { // a letter was cut through
		line = line[:len(line)-1]
	}
	return line
}

func groups(queue string, letters []delayqueue.Entry) (all []causeView) {
	type group struct{ name, cause string }
	found := map[group]*causeView{}
	for _, e := range letters {
		at := group{e.Name, causeOf(e.Cause)}
		v := found[at]
		if v == nil {
			v = &causeView{Queue: queue, Name: at.name, Cause: at.cause, First: e.EndedAt, Last: e.EndedAt}
			found[at] = v
		}
		v.Count++
		if e.EndedAt.Before(v.First) {
			v.First = e.EndedAt
		}
		if e.EndedAt.After(v.Last) {
			v.Last = e.EndedAt
		}
	}
	for _, v := range found {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b causeView) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cause, b.Cause))
	})
	return all
}

// dead answers "what broke, and how much?".
func (c *console) dead(r *http.Request) (*page, error) {
	p := &page{Name: "dead", Title: "Dead letters"}
	queues := c.handles(r.Context())
	troubled(p, "queues", queues)
	all := make([]deadView, len(queues.Data))
	var reads []func()
	for i, h := range queues.Data {
		all[i].Queue = h.name
		reads = append(reads, func() { all[i].Stats = c.readStats(r.Context(), h) },
			func() { all[i].Letters = c.list(r.Context(), h, delayqueue.StateDead, seldomEvery, shownDead) })
	}
	together(reads...)
	body := struct {
		Queues  []deadView
		Causes  []causeView
		Letters []delayqueue.Entry // of one queue, name and cause
		Chosen  *causeView
		Total   int64
		Looked  int
		Known   bool // there are no others
		May     []ops.Action
	}{Queues: all, Known: queues.OK(), May: c.may(r, ops.ActionRedrive, ops.ActionPurge)}
	ask := r.URL.Query()
	for i := range all {
		d := &all[i]
		troubled(p, "queue "+d.Queue, d.Stats)
		troubled(p, "dead letters of "+d.Queue, d.Letters)
		body.Known = body.Known && d.Letters.Known
		d.Causes = groups(d.Queue, d.Letters.Data)
		body.Causes = append(body.Causes, d.Causes...)
		body.Total += d.Stats.Data.Dead
		body.Looked += len(d.Letters.Data)
		if ask.Get("queue") != d.Queue {
			continue
		}
		for _, e := range d.Letters.Data {
			if e.Name == ask.Get("name") && causeOf(e.Cause) == ask.Get("cause") {
				body.Letters = append(body.Letters, e)
			}
		}
		body.Chosen = &causeView{Queue: d.Queue, Name: ask.Get("name"), Cause: ask.Get("cause"), Count: len(body.Letters)}
		body.Letters = first(body.Letters, shownMessages)
	}
	slices.SortStableFunc(body.Causes, func(a, b causeView) int { return cmp.Compare(b.Count, a.Count) })
	p.Body = body
	return p, nil
}

// message shows what is known of one message.
func (c *console) message(r *http.Request) (*page, error) {
	h, err := c.named(r)
	if err == nil {
		err = h.err
	}
	if err != nil {
		return nil, err
	}
	q, id := h.queue, r.URL.Query().Get("id")
	p := &page{Name: "message", Nav: "queues", Title: "Message " + id}
	body := struct {
		Queue, ID       string
		Entry           panel[delayqueue.Entry]
		Missing         bool
		MayPayload      bool
		Payload         []byte
		PayloadErr      error
		PayloadRequired bool
		May             []ops.Action
	}{Queue: q.Name(), ID: id, MayPayload: c.allowed(r, Payloads)}
	body.Entry = get(r.Context(), &c.cache, "message "+q.Name()+" "+id, freshEvery, func(ctx context.Context) (delayqueue.Entry, error) { return q.Peek(ctx, id) })
	if errors.Is(body.Entry.Err, delayqueue.ErrNotFound) {
		body.Missing, p.Status = true, http.StatusNotFound
	} else {
		troubled(p, "message", body.Entry)
	}
	switch body.Entry.Data.State {
	case delayqueue.StateQueued:
		body.May = c.may(r, ops.ActionCancel)
	case delayqueue.StateDead:
		body.May = c.may(r, ops.ActionRedrive, ops.ActionPurge)
	}
	if r.URL.Query().Has("payload") && !body.Missing {
		if !body.MayPayload {
			return nil, &httpError{http.StatusForbidden, "You may not see payloads here."}
		}
		p.Quiet = true
		body.PayloadRequired = true
		body.Payload, body.PayloadErr = q.Payload(r.Context(), id)
	}
	p.Body = body
	return p, nil
}

// idempotency answers "did this payment run?".
func (c *console) idempotency(r *http.Request) (*page, error) {
	ask := r.URL.Query()
	p := &page{Name: "idempotency", Title: "Idempotency", Quiet: true}
	body := struct {
		ops.Request
		recordView
		Asked     bool
		Name      string
		Err       error
		MayForget bool
	}{Request: requestOf(ask.Get)}
	if body.Asked = body.Route != "" && body.Key != ""; body.Asked {
		body.Name = idempotency.NameOf(body.Route, body.Principal, body.Key)
		record := get(r.Context(), &c.cache, "record "+body.Name, freshEvery, func(ctx context.Context) (recordView, error) { return c.record(ctx, body.Name) })
		troubled(p, "record", record)
		body.recordView, body.Err = record.Data, record.Err
		body.MayForget = record.OK() && body.Found && c.allowed(r, ops.ActionForget)
	}
	p.Body = body
	return p, nil
}

// recordView is a record of an Idempotency-Key without its response, which is not for the page.
type recordView struct {
	Found, Ran, Begun, Sealed bool
	State                     string
	Ticket                    core.Ticket
	Size                      int // of the response
}

func (c *console) record(ctx context.Context, name string) (recordView, error) {
	record, err := c.records.Lookup(ctx, idempotency.Work{Name: name})
	sealed := errors.Is(err, idempotency.ErrSealed)
	if sealed {
		record.Outcome, err = []byte{}, nil
	}
	return recordView{record.Found, record.Outcome != nil, record.Begun, sealed, ops.RecordState(record), record.Ticket, len(record.Outcome)}, err
}

// requestOf reads a request with an Idempotency-Key.
func requestOf(value func(string) string) ops.Request {
	return ops.Request{Route: value("route"), Principal: value("principal"), Key: strings.Trim(value("idempotency-key"), `"`)}
}
