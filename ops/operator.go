package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
)

// ErrChanged means that what an operator saw is no longer true. Nothing was changed. The error is a
// *ChangedError.
var ErrChanged = errors.New("ops: it has changed since it was looked at")

// ChangedError says what has changed since the operator looked. It matches ErrChanged.
type ChangedError struct {
	// Seen is what the operator saw, and Now what is true, as text for people.
	Seen, Now string
}

// Error says both.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%v, and nothing was done: seen: %s; now: %s", ErrChanged, e.Seen, e.Now)
}

// Is makes it match ErrChanged.
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// By is who makes a change, and why: both are needed.
type By struct{ Who, Why string }

// Operator makes the changes of operators. Each is recorded in the audit before it is
// made, and is refused with ErrChanged if what the operator saw is no longer true. After
// ErrInvalidArgument and ErrNotAudited nothing was changed, either. Other errors are
// those of the packages that make the change: delayqueue.ErrNoQueue for a queue that is
// gone, core.ErrUnavailable. It is safe for concurrent use, and has nothing to close.
type Operator struct {
	locker *core.Locker
	audit  *Audit
	queues []*delayqueue.Queue
}

// NewOperator returns an Operator. It changes queues and records through the Audit's client, but a
// queue that is given here, which may be on another Redis, through its own. The Locker and the
// Audit need the same prefix; otherwise the error wraps core.ErrInvalidOption.
func NewOperator(locker *core.Locker, audit *Audit, queues ...*delayqueue.Queue) (*Operator, error) {
	if locker == nil || audit == nil {
		return nil, fmt.Errorf("ops: %w: NewOperator: it needs a Locker and an Audit", core.ErrInvalidOption)
	}
	if slices.Contains(queues, nil) {
		return nil, fmt.Errorf("ops: %w: NewOperator: a queue is nil", core.ErrInvalidOption)
	}
	if locker.Prefix() != audit.prefix {
		return nil, fmt.Errorf("ops: %w: NewOperator: the Locker's prefix is %q, and the Audit's %q", core.ErrInvalidOption, locker.Prefix(), audit.prefix)
	}
	return &Operator{locker, audit, slices.Clone(queues)}, nil
}

// make records a change, makes it, and records how it ended.
func (o *Operator) make(ctx context.Context, by By, c Change, change func() (outcome string, err error)) error {
	c.Who, c.Why = by.Who, by.Why
	if err := o.audit.Record(ctx, &c); err != nil {
		return err
	}
	outcome, err := change()
	if changed, ok := errors.AsType[*ChangedError](err); ok {
		outcome = "refused: " + changed.Now
	} else if err != nil {
		outcome = "failed: " + err.Error()
	}
	c.Outcome = outcome
	o.audit.Done(ctx, &c)
	return err
}

// Unlock takes a key from the holder that has the fence, as [core.Locker.ForceRelease] does: the
// next waiter gets it. The holder's code is not stopped. If no holder has the fence, the error says
// who holds the key now.
func (o *Operator) Unlock(ctx context.Context, by By, key string, fence int64) error {
	if err := core.ValidateKey(key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	if fence <= 0 {
		return fmt.Errorf("%w: unlock needs the fence of the holder", ErrInvalidArgument)
	}
	seen := fmt.Sprint("fence ", fence)
	return o.make(ctx, by, Change{Action: ActionUnlock, Key: key, Seen: seen}, func() (string, error) {
		forced, err := o.locker.ForceRelease(ctx, key, fence)
		if err != nil {
			return "", err
		} else if forced {
			return "taken from its holder", nil
		}
		info, err := o.locker.Inspect(ctx, key)
		if err != nil {
			return "", err
		}
		return "", &ChangedError{seen, heldBy(info)}
	})
}

// heldBy says who holds a key.
func heldBy(k *core.KeyInfo) string {
	switch {
	case k.UnknownFormat:
		return "it has a record that this release cannot read"
	case k.Free():
		return "nobody holds it"
	}
	var all []string
	for i, h := range k.Holders {
		if i == 3 {
			all = append(all, fmt.Sprintf("%d more", k.Held-i))
			break
		}
		all = append(all, fmt.Sprintf("%s:%d with fence %d", h.Host, h.PID, h.Fence))
	}
	return "held by " + strings.Join(all, ", ")
}

// Messages are messages of a queue that an operator chose.
type Messages struct {
	Queue string
	// ID is that of one message. Empty: all that match Filter and are in the state that the change is for.
	ID     string
	Filter delayqueue.Filter
	// Count is how many there were, by [delayqueue.Queue.Count], when the operator chose them. If
	// the number has changed the change is refused; with a Filter it is also refused if there are
	// too many to count. It is not used with an ID.
	Count int64
}

// check refuses a change of messages if another number of them is counted now.
func (m *Messages) check(state delayqueue.State, counted int64, exact bool) error {
	if counted != m.Count {
		return &ChangedError{fmt.Sprintf("%d %s", m.Count, state), fmt.Sprintf("%d %s", counted, state)}
	}
	if !exact && m.Filter != (delayqueue.Filter{}) { // who chose all knows that there are more
		return fmt.Errorf("%w: too many messages are %s to count those that the filter chooses: narrow its time of death, or give it a key", ErrInvalidArgument, state)
	}
	return nil
}

// change opens the queue and records a change of messages. It is refused if they are not what was seen.
func (o *Operator) change(ctx context.Context, by By, m Messages, c Change, state delayqueue.State,
	one func(*delayqueue.Queue) error, all func(*delayqueue.Queue, delayqueue.Filter) (int, error),
) (n int, err error) {
	c.Queue, c.Message = m.Queue, m.ID
	if m.ID == "" {
		c.Detail = strings.Trim(filterText(m.Filter)+", "+c.Detail, ", ")
		c.Seen = fmt.Sprintf("%d %s", m.Count, state)
	}
	err = o.make(ctx, by, c, func() (string, error) {
		q, err := o.queue(ctx, m.Queue)
		if err != nil {
			return "", err
		}
		if m.ID != "" {
			if err = one(q); err == nil {
				n = 1
				return "done", nil
			}
			for _, other := range []error{delayqueue.ErrNotDead, delayqueue.ErrRunning, delayqueue.ErrEnded, delayqueue.ErrNotFound} {
				if errors.Is(err, other) {
					return "", &ChangedError{fmt.Sprint("a message that is ", state), now(ctx, q, m.ID)}
				}
			}
			return "", err
		}
		f := m.Filter
		if state == delayqueue.StateDead { // what dies after it was counted is left alone
			at, err := o.audit.rdb.Time(ctx).Result()
			if err != nil {
				return "", fmt.Errorf("ops: %w: %w", core.ErrUnavailable, err)
			}
			if at = at.Add(time.Millisecond).Truncate(time.Millisecond); f.DiedBefore.IsZero() || f.DiedBefore.After(at) {
				f.DiedBefore = at
			}
		}
		counted, exact, err := q.Count(ctx, state, f)
		if err == nil {
			err = m.check(state, counted, exact)
		}
		if err != nil {
			return "", err
		}
		if n, err = all(q, f); err != nil {
			err = fmt.Errorf("after %d: %w", n, err)
		}
		return fmt.Sprint(n, " done"), err
	})
	return n, err
}

func (o *Operator) queue(ctx context.Context, name string) (*delayqueue.Queue, error) {
	for _, q := range o.queues {
		if q.Name() == name {
			return q, nil
		}
	}
	return delayqueue.Open(ctx, o.audit.rdb, name, delayqueue.WithPrefix(o.audit.prefix))
}

// now says in which state a message is.
func now(ctx context.Context, q *delayqueue.Queue, id string) string {
	s, err := q.Peek(ctx, id)
	if errors.Is(err, delayqueue.ErrNotFound) {
		return "it is not known, or not any more"
	} else if err != nil {
		return err.Error()
	}
	return "it is " + string(s.State)
}

func filterText(f delayqueue.Filter) string {
	var all []string
	for _, one := range []struct{ name, value string }{{"key", f.Key}, {"name", f.Name}, {"principal", f.Principal}, {"cause", f.Cause}} {
		if one.value != "" {
			all = append(all, fmt.Sprintf("%s=%q", one.name, one.value))
		}
	}
	if !f.DiedFrom.IsZero() {
		all = append(all, "died-from="+f.DiedFrom.UTC().Format(time.RFC3339))
	}
	if !f.DiedBefore.IsZero() {
		all = append(all, "died-before="+f.DiedBefore.UTC().Format(time.RFC3339))
	}
	return strings.Join(all, " ")
}

// Redrive puts dead letters back into their queue, as [delayqueue.Queue.RedriveAll] does, and returns how many, also
// with an error. A zero MaxAge is that of a queue that was given to NewOperator, and otherwise 15 min, since the
// queue's own is not known here.
func (o *Operator) Redrive(ctx context.Context, by By, m Messages, opts delayqueue.RedriveOptions) (n int, err error) {
	var detail []string
	if opts.PerSecond > 0 {
		detail = append(detail, fmt.Sprintf("%g a second", opts.PerSecond))
	}
	if opts.Limit > 0 {
		detail = append(detail, fmt.Sprintf("%d at most", opts.Limit))
	}
	if opts.MaxAge > 0 {
		detail = append(detail, fmt.Sprintf("max age %s", opts.MaxAge))
	}
	return o.change(ctx, by, m, Change{Action: ActionRedrive, Detail: strings.Join(detail, ", ")}, delayqueue.StateDead,
		func(q *delayqueue.Queue) error { return q.Redrive(ctx, m.ID, opts.MaxAge) },
		func(q *delayqueue.Queue, f delayqueue.Filter) (int, error) { return q.RedriveAll(ctx, f, opts) })
}

// Purge forgets dead letters, with their payloads, and returns how many, also with an error.
func (o *Operator) Purge(ctx context.Context, by By, m Messages) (n int, err error) {
	return o.change(ctx, by, m, Change{Action: ActionPurge}, delayqueue.StateDead,
		func(q *delayqueue.Queue) error { return q.Purge(ctx, m.ID) },
		func(q *delayqueue.Queue, f delayqueue.Filter) (int, error) { return q.PurgeAll(ctx, f) })
}

// Cancel cancels queued messages, and returns how many, also with an error. Messages that are
// enqueued between the count and the begin of the change are cancelled too.
func (o *Operator) Cancel(ctx context.Context, by By, m Messages) (n int, err error) {
	return o.change(ctx, by, m, Change{Action: ActionCancel}, delayqueue.StateQueued,
		func(q *delayqueue.Queue) error { return q.Cancel(ctx, m.ID) },
		func(q *delayqueue.Queue, f delayqueue.Filter) (int, error) { return q.CancelAll(ctx, f) })
}

// Pause keeps all workers from starting messages of a queue for d, as [delayqueue.Queue.Pause] does.
func (o *Operator) Pause(ctx context.Context, by By, queue string, d time.Duration) error {
	return o.make(ctx, by, Change{Action: ActionPause, Queue: queue, Detail: "for " + d.String()}, func() (string, error) {
		q, err := o.queue(ctx, queue)
		if err == nil {
			err = q.Pause(ctx, d)
		}
		return "paused", err
	})
}

// Resume ends a pause.
func (o *Operator) Resume(ctx context.Context, by By, queue string) error {
	return o.make(ctx, by, Change{Action: ActionResume, Queue: queue}, func() (string, error) {
		q, err := o.queue(ctx, queue)
		if err == nil {
			err = q.Resume(ctx)
		}
		return "resumed", err
	})
}

// Request names a request with an Idempotency-Key, as [idempotency.NameOf] takes it.
type Request struct{ Route, Principal, Key string }

// RecordState returns the state of a request, for Operator.Forget: "unknown", "parked", "begun" or
// "done".
func RecordState(r idempotency.Record) string {
	switch {
	case !r.Found:
		return "unknown"
	case r.Outcome != nil:
		return "done"
	case r.Begun:
		return "begun"
	default:
		return "parked"
	}
}

// Lookup returns the record of a request. A request whose response cannot be opened is done: its
// Outcome is empty, and not nil.
func (o *Operator) Lookup(ctx context.Context, r Request) (idempotency.Record, error) {
	store, err := o.records()
	if err != nil {
		return idempotency.Record{}, err
	}
	record, err := store.Lookup(ctx, idempotency.Work{Name: idempotency.NameOf(r.Route, r.Principal, r.Key)})
	if errors.Is(err, idempotency.ErrSealed) {
		record.Outcome, err = []byte{}, nil
	}
	return record, err
}

// Forget removes the record of a request, so that it runs again if it is sent again. seen is its
// RecordState, and must not be "unknown". The audit has its route and the name of its record, but
// not its principal and its key.
func (o *Operator) Forget(ctx context.Context, by By, r Request, seen string) error {
	if seen == RecordState(idempotency.Record{}) {
		return fmt.Errorf("%w: there is no record of the request", ErrInvalidArgument)
	}
	name := idempotency.NameOf(r.Route, r.Principal, r.Key)
	detail := fmt.Sprintf("route %q, record %s", r.Route, name)
	return o.make(ctx, by, Change{Action: ActionForget, Detail: detail, Seen: seen}, func() (string, error) {
		record, err := o.Lookup(ctx, r)
		if err != nil {
			return "", err
		}
		store, err := o.records()
		if err != nil {
			return "", err
		}
		forgotten := false
		if RecordState(record) == seen {
			if forgotten, err = store.ForgetIf(ctx, name, record); err == nil && !forgotten {
				record, err = o.Lookup(ctx, r) // it has changed since
			}
		}
		if err != nil {
			return "", err
		}
		if !forgotten {
			return "", &ChangedError{seen, RecordState(record)}
		}
		return "forgotten", nil
	})
}

func (o *Operator) records() (*idempotency.Store, error) {
	return idempotency.New(o.audit.rdb, idempotency.WithPrefix(o.audit.prefix))
}
