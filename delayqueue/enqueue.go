package delayqueue

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/luascript"
)

// enqueueing is a job on its way into the queue.
type enqueueing struct {
	ctx      context.Context // the caller's
	job      Job
	id, text any    // arguments, made by the caller and not by who sends the batch
	long     []byte // its payload, if that is too long for a record
	expires  time.Time
	stored   bool // and not before
	over     bool // of Receipt
	err      error
	done     chan struct{} // has one when the others are set
}

// emptyEnqueueing makes one for a pool.
func emptyEnqueueing() any { return &enqueueing{done: make(chan struct{}, 1)} }

// of describes a job.
func (e *enqueueing) of(ctx context.Context, job Job, inline int) *enqueueing {
	text, long := textOf(job.Key, job.Name, job.Principal, job.Payload, inline)
	*e = enqueueing{ctx: ctx, job: job, id: job.ID, text: text, long: long, done: e.done}
	return e
}

// reuse returns an enqueueing to the pool.
func (p *partition) reuse(e *enqueueing) {
	*e = enqueueing{done: e.done}
	p.enqueueings.Put(e)
}

// add stores a job here.
func (p *partition) add(ctx context.Context, job Job) (Receipt, error) {
	e := p.enqueueings.Get().(*enqueueing).of(ctx, job, p.inline())
	if !p.queue.sealer.seals() { // a shorter one was copied with its key
		e.long = bytes.Clone(e.long) // the caller may use it again before it was sent, if ctx ends
	}
	_ = p.enqueues.Add(e) // never closed
	select {
	case <-e.done:
		defer p.reuse(e)
		if e.err != nil {
			return Receipt{}, e.err
		}
		return Receipt{core.Ticket{ID: job.ID, Queue: p.queue.name, ExpiresAt: e.expires}, e.stored, e.over}, nil
	case <-ctx.Done():
		p.enqueues.Forget()
		return Receipt{}, callerGone(ctx, "enqueue")
	}
}

func (p *partition) enqueue(batch []*enqueueing) {
	ctx := context.Background()
	now, unclaimed, exceptions, err := p.send(ctx, batch, false)
	if err == nil && unclaimed < 0 { // nothing was ever stored here, or Redis has lost it, and perhaps the manifest that this process knows
		var m *manifest
		if m, err = p.queue.reread(ctx, "enqueue"); err == nil {
			err = p.queue.lacksKeys("enqueue", m)
		}
		if err == nil {
			now, unclaimed, exceptions, err = p.send(ctx, batch, true)
		}
	}
	parked := false
	for i, e := range batch {
		word, exception := exceptions[i]
		switch {
		case err != nil:
			e.err = err
		case exception:
			e.err = e.answered(p.queue, word, now)
		default:
			e.expires, e.stored = now.Add(time.Duration(ceilMilliseconds(e.job.MaxAge))*time.Millisecond), true
			parked = parked || e.job.parked
		}
		e.done <- struct{}{} // from here on it is the caller's
	}
	if err == nil {
		p.queue.noteClaim(p, unclaimed, parked)
	}
}

// send sends a batch to enqueue.lua. Unless the caller is sure of the manifest, the script may refuse all: then unclaimed is negative.
func (p *partition) send(ctx context.Context, batch []*enqueueing, sure bool) (now time.Time, unclaimed time.Duration, exceptions map[int]string, err error) {
	if err := p.checkLayout(ctx, "enqueue"); err != nil {
		return now, 0, nil, redisError(ctx, "enqueue", err)
	}
	var long []string
	args := make([]any, 0, 5+2*len(batch))
	args = append(args, p.queue.admission, howMany(len(batch), sure))
	for _, e := range batch {
		args = append(args, e.id)
		if e.long != nil {
			long = append(long, e.job.ID)
		}
	}
	for _, e := range batch {
		args = append(args, e.text)
	}
	args = appendHows(args, batch)
	for _, e := range batch {
		if e.long != nil {
			args = append(args, e.long)
		}
	}
	reply, err := p.change(ctx, enqueueScript, long, args...)
	if now, unclaimed, exceptions, err = p.readEnqueued(len(batch), reply, err); err != nil {
		err = redisError(ctx, "enqueue", err)
	}
	return now, unclaimed, exceptions, err
}

// howMany says how many messages enqueue.lua gets, and whether it may store the first ones of the partition.
func howMany(n int, sure bool) string {
	if sure {
		return strconv.Itoa(n) + " 1"
	}
	return strconv.Itoa(n)
}

// appendHows appends how the jobs of a batch are stored: successive jobs are mostly alike, and
// described once.
func appendHows(args []any, batch []*enqueueing) []any {
	var how []byte
	last, many := "", 0
	for i, e := range batch {
		if how = e.job.appendHow(how[:0]); i == 0 || string(how) != last {
			if many > 0 {
				args = append(args, strconv.Itoa(many)+last)
			}
			last, many = string(how), 0
		}
		many++
	}
	return append(args, strconv.Itoa(many)+last)
}

// appendHow appends how a job is stored, for enqueue.lua. Times are rounded up: a message is never
// early, and not too old when it is due.
func (j Job) appendHow(b []byte) []byte {
	b = appendLengths(append(b, ' '), j.Key, j.Name, j.Principal)
	b = strconv.AppendInt(append(b, ' '), ceilMilliseconds(j.Delay+j.QuietPeriod), 10)
	b = strconv.AppendInt(append(b, ' '), ceilMilliseconds(j.MaxAge), 10)
	if b = append(b, ' '); !j.fresh {
		b = append(b, flagGiven)
	}
	return append(b, j.flags()...)
}

// readEnqueued reads the reply of enqueue.lua for n messages: exceptions are those that it did not
// store now.
func (p *partition) readEnqueued(n int, reply []any, err error) (now time.Time, unclaimed time.Duration, exceptions map[int]string, _ error) {
	const head = 3
	if err == nil && (len(reply) < head || len(reply)%2 != head%2) {
		err = luascript.ErrReply
	}
	if err != nil {
		return now, 0, nil, err
	}
	ms, ok := reply[0].(int64)
	idle, ok2 := reply[1].(int64)
	size, ok3 := reply[2].(int64)
	p.bytes.Store(size)
	ok = ok && ok2 && ok3
	for i := head; i < len(reply); i += 2 {
		at, is := reply[i].(int64)
		word, is2 := reply[i+1].(string)
		if ok = ok && is && is2 && at >= 1 && at <= int64(n); !ok {
			break
		}
		if exceptions == nil {
			exceptions = map[int]string{}
		}
		exceptions[int(at)-1] = word
	}
	if !ok {
		err = luascript.ErrReply
	}
	return time.UnixMilli(ms), time.Duration(idle) * time.Millisecond, exceptions, err
}

// unclaimed is for how long no Worker has claimed, by a call of enqueue.lua without jobs; negative if nothing is queued or runs.
func (p *partition) unclaimed(ctx context.Context) (time.Duration, error) {
	reply, err := p.change(ctx, enqueueScript, nil, p.queue.admission, 0)
	if _, unclaimed, _, err := p.readEnqueued(0, reply, err); err == nil {
		return unclaimed, nil
	}
	return 0, redisError(ctx, "enqueue", cmp.Or(err, luascript.ErrReply))
}

// answered takes the reply of enqueue.lua for a job that it did not store now.
func (e *enqueueing) answered(q *Queue, word string, now time.Time) error {
	full := fullWords[word]
	switch {
	case errors.Is(full, ErrKeyFull):
		return fmt.Errorf("delayqueue: enqueue in %q for key %q: %w: %s", q.name, e.job.Key, full, q.fullBecause(full))
	case full != nil:
		return fmt.Errorf("delayqueue: enqueue in %q: %w: %s", q.name, full, q.fullBecause(full))
	}
	if notAfter, known := readMillis(word); known {
		e.expires, e.over = notAfter, !now.Before(notAfter)
	} else if ended, known := readEnding(e.job.ID, word); known {
		e.expires, e.over = ended.ExpiresAt, true
	} else {
		return fmt.Errorf("delayqueue: enqueue in %q: what redis holds under id %q is not a message", q.name, e.job.ID)
	}
	return nil
}
