package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Job is a message to be stored.
type Job struct {
	ID, Key, Name, Principal string
	Payload                  []byte
	Delay, MaxAge            time.Duration
	Coalesces                bool          // it replaces a message of its key, name and principal that does
	MostDelay                time.Duration // what replaces it puts it off by its own Delay, up to this; 0: not at all
	Parked                   bool          // its key is held, and reserved for it
	Wait                     time.Duration // for which it waits for its key, if it is its head; unless it has a Delay
	Fresh                    bool          // no other job has its id
	Kept                     bool          // nobody changes Payload after a call whose ctx has ended
}

// Stored is what became of a Job.
type Stored struct {
	Expires time.Time // of the message with its id
	Now     bool      // it was stored now, and not before
	Over    bool      // that message has ended, or is too old to be started
	Rests   bool      // it was to wait for its key, and perhaps could not run now even if that were free
	Full    Full      // why it was not stored
}

// Full is a bound for which a job was not stored.
type Full string

// The bounds, as the scripts name them.
const (
	KeyFull       Full = "key full"
	PrincipalFull Full = "principal full"
	QueueFull     Full = "queue full"
)

// rests is what the scripts say of a job that was stored, and perhaps could not run now even if its key were free.
const rests = "rests"

func fullOf(word string) Full {
	switch full := Full(word); full {
	case KeyFull, PrincipalFull, QueueFull:
		return full
	default:
		return ""
	}
}

// enqueueing is a job on its way into the queue.
type enqueueing struct {
	ctx      context.Context // the caller's
	job      Job
	id, text any    // arguments, made by the caller and not by who sends the batch
	long     []byte // its payload, if that is too long for a record
	stored   Stored
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

// distinct is how many of the first items of a queue have different ids.
func distinct(queue []*enqueueing) int {
	for i, e := range queue {
		if e.job.Fresh {
			continue
		}
		for _, before := range queue[:i] {
			if before.job.ID == e.job.ID {
				return i
			}
		}
	}
	return len(queue)
}

// Enqueue stores a job. It waits for other calls' to be stored with it.
func (p *Partition) Enqueue(ctx context.Context, job Job) (Stored, error) {
	e := p.enqueueings.Get().(*enqueueing).of(ctx, job, p.Inline())
	if !job.Kept { // a shorter one was copied with its key
		e.long = bytes.Clone(e.long)
	}
	_ = p.enqueues.Add(e) // never closed
	select {
	case <-e.done:
		stored, err := e.stored, e.err
		*e = enqueueing{done: e.done}
		p.enqueueings.Put(e)
		return stored, err
	case <-ctx.Done():
		p.enqueues.Forget()
		return Stored{}, CallerGone(ctx, "enqueue")
	}
}

// EnqueueTogether stores jobs by one call of the script, as those are stored that come while another is under way.
func (p *Partition) EnqueueTogether(ctx context.Context, jobs ...Job) (stored []Stored, errs []error) {
	batch := make([]*enqueueing, len(jobs))
	for i, job := range jobs {
		batch[i] = emptyEnqueueing().(*enqueueing).of(ctx, job, p.Inline())
	}
	p.enqueue(batch)
	for _, e := range batch {
		stored, errs = append(stored, e.stored), append(errs, e.err)
	}
	return stored, errs
}

func (p *Partition) enqueue(batch []*enqueueing) {
	ctx := context.Background()
	now, unclaimed, exceptions, err := p.send(ctx, batch, false)
	if err == nil && unclaimed < 0 {
		if err = p.store.Begin(ctx); err == nil {
			now, unclaimed, exceptions, err = p.send(ctx, batch, true)
		}
	}
	parked := false
	for i, e := range batch {
		word, exception := exceptions[i]
		switch {
		case err != nil:
			e.err = err
		case exception && word != rests:
			e.err = e.answered(p.store.Name, word, now)
		default:
			e.stored = Stored{Expires: now.Add(time.Duration(Milliseconds(e.job.MaxAge)) * time.Millisecond), Now: true, Rests: exception}
			parked = parked || e.job.Parked
		}
		e.done <- struct{}{} // from here on it is the caller's
	}
	if err == nil {
		p.store.Idle(p, unclaimed, parked)
	}
}

// send sends a batch to enqueue.lua. Unless the caller is sure of the queue, the script may refuse all: then unclaimed is negative.
func (p *Partition) send(ctx context.Context, batch []*enqueueing, sure bool) (now time.Time, unclaimed time.Duration, exceptions map[int]string, err error) {
	var long []string
	args := make([]any, 0, 5+2*len(batch))
	args = append(args, p.store.admission, howMany(len(batch), sure))
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
		err = Unavailable(ctx, "enqueue", err)
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
func (j *Job) appendHow(b []byte) []byte {
	b = appendLengths(append(b, ' '), j.Key, j.Name, j.Principal)
	if b = append(b, ' '); j.Wait > 0 && j.Delay == 0 {
		b = strconv.AppendInt(append(b, 'w'), Milliseconds(j.Wait), 10)
	} else {
		b = strconv.AppendInt(b, Milliseconds(j.Delay), 10)
	}
	b = strconv.AppendInt(append(b, ' '), Milliseconds(j.MaxAge), 10)
	if b = append(b, ' '); !j.Fresh {
		b = append(b, flagGiven)
	}
	switch {
	case !j.Coalesces && !j.Parked:
		return append(b, '-')
	case !j.Coalesces:
		return append(b, 'p')
	case j.Parked:
		b = append(b, flagParkedCoalesces)
	default:
		b = append(b, flagCoalesces)
	}
	if j.MostDelay > 0 {
		b = strconv.AppendInt(b, Milliseconds(j.MostDelay), 10)
	}
	return b
}

// readEnqueued reads the reply of enqueue.lua for n messages: exceptions are those that it did not
// store now.
func (p *Partition) readEnqueued(n int, reply []any, err error) (now time.Time, unclaimed time.Duration, exceptions map[int]string, _ error) {
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

// Unclaimed is for how long nobody has claimed, by a call of enqueue.lua without jobs; negative if nothing is queued or runs.
func (p *Partition) Unclaimed(ctx context.Context) (time.Duration, error) {
	reply, err := p.change(ctx, enqueueScript, nil, p.store.admission, 0)
	if _, unclaimed, _, err := p.readEnqueued(0, reply, err); err == nil {
		return unclaimed, nil
	}
	return 0, Unavailable(ctx, "enqueue", cmp.Or(err, luascript.ErrReply))
}

// answered takes the reply of enqueue.lua for a job that it did not store now.
func (e *enqueueing) answered(queue, word string, now time.Time) error {
	if e.stored.Full = fullOf(word); e.stored.Full != "" {
		return nil
	}
	if notAfter, known := readMillis(word); known {
		e.stored = Stored{Expires: notAfter, Over: !now.Before(notAfter)}
	} else if ended, known := ReadEnding(e.job.ID, word); known {
		e.stored = Stored{Expires: ended.ExpiresAt, Over: true}
	} else {
		return fmt.Errorf("delayqueue: enqueue in %q: what redis holds under id %q is not a message", queue, e.job.ID)
	}
	return nil
}
