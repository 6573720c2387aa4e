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

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
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
	all := make([]deadView, len(c.Queues))
	var reads []func()
	for i, q := range c.Queues {
		all[i].Queue = q.Name()
		reads = append(reads, func() { all[i].Stats = c.readStats(r.Context(), q) }, func() {
			all[i].Letters = get(r.Context(), &c.cache, "list dead "+q.Name(), deadEvery, func(ctx context.Context) ([]delayqueue.Entry, error) {
				letters, _, err := q.List(ctx, delayqueue.StateDead, "", shownDead)
				return letters, err
			})
		})
	}
	together(reads...)
	body := struct {
		Queues       []deadView
		Causes       []causeView
		Letters      []delayqueue.Entry // of one queue, name and cause
		Chosen       *causeView
		Total        int64
		Looked, Most int
	}{Queues: all, Most: shownDead}
	ask := r.URL.Query()
	for i := range all {
		d := &all[i]
		troubled(p, "queue "+d.Queue, d.Stats)
		troubled(p, "dead letters of "+d.Queue, d.Letters)
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
	q, err := c.named(r)
	if err != nil {
		return nil, err
	}
	id := r.URL.Query().Get("id")
	p := &page{Name: "message", Nav: "queues", Title: "Message " + id}
	body := struct {
		Queue, ID       string
		Entry           panel[delayqueue.Entry]
		Missing         bool
		MayPayload      bool
		Payload         []byte
		PayloadErr      error
		PayloadHidden   bool
		PayloadRequired bool
	}{Queue: q.Name(), ID: id, MayPayload: c.allowed(r, ActionPayload)}
	body.Entry = get(r.Context(), &c.cache, "message "+q.Name()+" "+id, refresh, func(ctx context.Context) (delayqueue.Entry, error) { return q.Peek(ctx, id) })
	if errors.Is(body.Entry.Err, delayqueue.ErrNotFound) {
		body.Missing, p.Status = true, http.StatusNotFound
	} else {
		troubled(p, "message", body.Entry)
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
		Has                   bool
		Route, Principal, Key string
		Asked                 bool
		Name                  string
		Record                idempotency.Record
		OutcomeSize           int
		Err                   error
		Sealed                bool
		Now                   time.Time
	}{
		Has: c.Idempotency != nil, Route: ask.Get("route"), Principal: ask.Get("principal"), Key: strings.Trim(ask.Get("idempotency-key"), `"`), Now: time.Now(),
	}
	if body.Asked = body.Has && body.Route != "" && body.Key != ""; body.Asked {
		body.Name = idempotency.NameOf(body.Route, body.Principal, body.Key)
		body.Record, body.Err = c.Idempotency.Lookup(r.Context(), idempotency.Work{Name: body.Name})
		body.OutcomeSize = len(body.Record.Outcome)
		if body.Sealed = errors.Is(body.Err, idempotency.ErrSealed); body.Sealed {
			body.Err = nil
		}
		body.Record.Outcome = nil // a response is not for the page
	}
	p.Body = body
	return p, nil
}
