package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

const (
	maxForm      = 64 << 10
	countTime    = 10 * time.Second // of what a change would change
	changeTime   = time.Hour        // of a change, beside what its rate takes
	shownChange  = 2 * time.Second  // what its page waits for it
	shownChanges = 100
	maxCounted   = 100_000 // Queue.Count goes no further
)

// proposal is a change that somebody asks for, as links and forms have it.
type proposal struct {
	Do      ops.Action
	Key     string
	Fence   int64
	Queue   string
	ID      string // of one message; empty: those of Name and Cause
	Name    string
	Cause   string
	Count   int64 // of them, as seen
	Request ops.Request
	Seen    string // the state of the Request's record
	Rate    float64
	For     time.Duration
	Why     string

	names *keyNames
}

func (c *console) readProposal(r *http.Request) (a proposal, err error) {
	v := r.FormValue
	whole := func(name string) (n int64) {
		if text := v(name); text != "" && err == nil {
			n, err = strconv.ParseInt(text, 10, 64)
		}
		return n
	}
	a = proposal{
		Do: ops.Action(v("do")), Fence: whole("fence"), Queue: v("queue"), ID: v("id"), Name: v("name"), Cause: v("cause"),
		Count: whole("count"), Request: requestOf(v), Seen: v("seen"), Rate: float64(whole("rate")), For: time.Duration(whole("minutes")) * time.Minute,
		Why:   strings.TrimSpace(r.PostFormValue("why")), // a link has none
		names: c.names,
	}
	if err != nil {
		return a, &httpError{http.StatusBadRequest, "A number was expected."}
	}
	a.Key, err = c.names.of(v("key"))
	return a, err
}

func (a proposal) filter() delayqueue.Filter { return delayqueue.Filter{Name: a.Name, Cause: a.Cause} }

func (a proposal) messages() ops.Messages {
	return ops.Messages{Queue: a.Queue, ID: a.ID, Filter: a.filter(), Count: a.Count}
}

// limit is how long a change may take.
func (a proposal) limit() time.Duration {
	d := changeTime
	if a.Do == ops.ActionRedrive && a.Rate > 0 {
		d += time.Duration(float64(min(a.Count, maxCounted)) / a.Rate * float64(time.Second))
	}
	return d
}

// Back is the page that shows what is changed.
func (a proposal) Back() string {
	switch {
	case a.Do == ops.ActionUnlock:
		return a.names.url(a.Key)
	case a.Do == ops.ActionForget:
		return link("idempotency", "route", a.Request.Route, "principal", a.Request.Principal, "idempotency-key", a.Request.Key)
	case a.ID != "":
		return link("message", "queue", a.Queue, "id", a.ID)
	case a.Do == ops.ActionRedrive || a.Do == ops.ActionPurge:
		return "dead"
	}
	return link("queue", "queue", a.Queue)
}

// Self is the address that makes the change, with what was seen: a query keeps any bytes, which the field of a form does not.
func (a proposal) Self() string {
	query := url.Values{"do": {string(a.Do)}}
	for name, value := range map[string]string{
		"key": a.names.param(a.Key), "queue": a.Queue, "id": a.ID, "name": a.Name, "cause": a.Cause,
		"route": a.Request.Route, "principal": a.Request.Principal, "idempotency-key": a.Request.Key, "seen": a.Seen,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, n := range map[string]int64{"fence": a.Fence, "count": a.Count} {
		if n != 0 {
			query.Set(name, strconv.FormatInt(n, 10))
		}
	}
	return "change?" + query.Encode()
}

// Again is the page that asks for the change anew, with what is true then.
func (a proposal) Again() string {
	switch a.Do {
	case ops.ActionUnlock, ops.ActionForget:
		return a.Back()
	}
	return link("change", "do", string(a.Do), "queue", a.Queue, "id", a.ID, "name", a.Name, "cause", a.Cause)
}

type changeBody struct {
	proposal
	Title, Does, Risk, Button string
	Counted                   bool // Count is how many there are
	Some                      bool // it is only how many of the first
	Running                   bool // it goes on
	Changed                   *ops.ChangedError
	Failed                    string
}

// changes are what each change would do, in words.
var changes = map[ops.Action]changeBody{
	ops.ActionUnlock: {
		Title: "Unlock the key", Button: "Unlock",
		Does: "The key is taken from its holder, whose context ends with ErrLeaseLost. The next that waits gets it.",
		Risk: "The holder's code is not stopped: until it sees that its context has ended, two can work on one key. Writes that are guarded by a fence are safe.",
	},
	ops.ActionPause: {
		Title: "Pause the queue", Button: "Pause", Does: "No worker starts a message of the queue. Messages that are running go on.",
		Risk: "Queued messages wait, and expire when they are too old.",
	},
	ops.ActionResume: {
		Title: "Resume the queue", Button: "Resume", Does: "Workers start messages again.",
		Risk: "Messages that became due meanwhile start at once.",
	},
	ops.ActionRedrive: {
		Title: "Redrive", Button: "Redrive",
		Does: "Dead letters go back into their queue, behind the other messages of their keys, or in front of them if they halt their key. They may start for 15 minutes from then.",
		Risk: "They run again, and may have done part of their work before. If the cause is still there, they die again.",
	},
	ops.ActionPurge: {
		Title: "Purge", Button: "Purge", Does: "Dead letters are removed, with their payloads.", Risk: "They cannot be brought back.",
	},
	ops.ActionCancel: {
		Title: "Cancel the message", Button: "Cancel it", Does: "A queued message is not run.",
		Risk: "Whoever waits for its result is told that it was cancelled.",
	},
	ops.ActionForget: {
		Title: "Forget the request", Button: "Forget it", Does: "Its record is removed.",
		Risk: "The request runs again if it is made again. If it did run, its work is done twice.",
	},
}

// confirm shows what a change would do, and asks why.
func (c *console) confirm(r *http.Request) (*page, error) {
	a, err := c.readProposal(r)
	if err != nil {
		return nil, err
	}
	if _, err := c.authorize(r, a.Do); err != nil {
		return nil, err
	}
	body, known := changes[a.Do]
	body.proposal = a
	switch {
	case !known:
		return nil, &httpError{http.StatusNotFound, "There is no such change."}
	case a.Do == ops.ActionUnlock && (core.ValidateKey(a.Key) != nil || a.Fence <= 0):
		return nil, &httpError{http.StatusBadRequest, "A key and the fence of its holder are needed."}
	case a.Do == ops.ActionCancel && a.ID == "":
		return nil, &httpError{http.StatusBadRequest, "The id of a message is needed."}
	}
	if a.Queue != "" {
		h, err := c.named(r)
		if err == nil {
			err = h.err
		}
		if err == nil && a.ID == "" && (a.Do == ops.ActionRedrive || a.Do == ops.ActionPurge) {
			err = c.count(r, h.queue, &body)
		}
		if err != nil {
			return nil, err
		}
	}
	return &page{Name: "change", Title: body.Title, Nav: navOf(a), Quiet: true, Body: body}, nil
}

// count counts the dead letters that a change is of.
func (c *console) count(r *http.Request, queue *delayqueue.Queue, body *changeBody) error {
	if answers := c.ping(r.Context()); !answers.OK() { // a count has more time than Redis has to answer
		return &httpError{http.StatusServiceUnavailable, "They could not be counted: " + answers.Err.Error()}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), countTime)
	defer cancel()
	n, exact, err := queue.Count(ctx, delayqueue.StateDead, body.filter())
	if err != nil {
		return &httpError{http.StatusServiceUnavailable, "They could not be counted: " + err.Error()}
	}
	body.Count, body.Counted, body.Some = n, true, !exact
	return nil
}

func navOf(a proposal) string {
	switch a.Do {
	case ops.ActionUnlock:
		return "keys"
	case ops.ActionForget:
		return "idempotency"
	case ops.ActionRedrive, ops.ActionPurge:
		return "dead"
	}
	return "queues"
}

// change makes a change. One that takes long goes on when its page was sent; the audit says how it ends.
func (c *console) change(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		c.refuse(w, &httpError{http.StatusBadRequest, "The form cannot be read."})
		return
	}
	a, err := c.readProposal(r)
	var who string
	if err == nil {
		who, err = c.authorize(r, a.Do)
	}
	if err == nil && who == "" {
		err = &httpError{http.StatusForbidden, "It is not known who you are: a change says who made it."}
	}
	if err == nil && a.Why == "" {
		err = &httpError{http.StatusBadRequest, "A change says why it is made."}
	}
	if err != nil {
		c.refuse(w, err)
		return
	}
	body := changeBody{proposal: a, Title: "Done"}
	status, done := 0, make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), a.limit())
		defer cancel()
		_, err := safely(ctx, func(ctx context.Context) (any, error) { return nil, c.make(ctx, ops.By{Who: who, Why: a.Why}, a) })
		c.cache.forget()
		done <- err
	}()
	wait := time.NewTimer(shownChange)
	defer wait.Stop()
	select {
	case err = <-done:
		status = body.ended(err)
	case <-wait.C:
		body.Title, body.Running = "Under way", true
	}
	p := &page{Name: "changed", Title: body.Title, Nav: navOf(a), Who: who, Quiet: true, Status: status, Body: body}
	c.frame(p)
	c.write(w, p)
}

// make makes a change that was asked for.
func (c *console) make(ctx context.Context, by ops.By, a proposal) (err error) {
	switch a.Do {
	case ops.ActionUnlock:
		return c.operator.Unlock(ctx, by, a.Key, a.Fence)
	case ops.ActionPause:
		return c.operator.Pause(ctx, by, a.Queue, a.For)
	case ops.ActionResume:
		return c.operator.Resume(ctx, by, a.Queue)
	case ops.ActionRedrive:
		_, err = c.operator.Redrive(ctx, by, a.messages(), delayqueue.RedriveOptions{PerSecond: a.Rate})
	case ops.ActionPurge:
		_, err = c.operator.Purge(ctx, by, a.messages())
	case ops.ActionCancel:
		if a.ID == "" {
			return fmt.Errorf("%w: the id of a message is needed", ops.ErrInvalidArgument)
		}
		_, err = c.operator.Cancel(ctx, by, a.messages())
	case ops.ActionForget:
		return c.operator.Forget(ctx, by, a.Request, a.Seen)
	default:
		return fmt.Errorf("%w: there is no such change", ops.ErrInvalidArgument)
	}
	return err
}

// ended says how a change ended, and returns the status of its page.
func (b *changeBody) ended(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if errors.As(err, &b.Changed) {
		b.Title = "It changed while you looked"
		return http.StatusConflict
	}
	b.Title, b.Failed = "It failed", err.Error()
	switch {
	case errors.Is(err, ops.ErrInvalidArgument), errors.Is(err, delayqueue.ErrInvalidArgument):
		return http.StatusBadRequest
	case errors.Is(err, delayqueue.ErrNoQueue):
		return http.StatusNotFound
	case errors.Is(err, ops.ErrNotAudited), errors.Is(err, core.ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// changes answers "who did that?".
func (c *console) changes(r *http.Request) (*page, error) {
	p := &page{Name: "audit", Title: "Audit"}
	all := get(r.Context(), &c.cache, "audit", slowEvery, func(ctx context.Context) ([]ops.Change, error) { return c.audit.List(ctx, shownChanges) })
	troubled(p, "audit", all)
	p.Body = all
	return p, nil
}
