package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/keyring"
	"github.com/perkey-go/perkey/internal/unixms"
)

// lookup is that of one message in one partition: the commands of a pipeline.
type lookup struct {
	id                           string
	attempts, record, deadLetter *redis.StringCmd
	ended                        [2 * buckets]*redis.StringCmd // nil: not asked
	due, claimEnds               *redis.FloatCmd               // nil: not asked
}

// lookUp adds the lookup of a message to a pipeline. The order of the commands matters, since the
// message may move on meanwhile: if it is not in one place any more, it is in a later one.
func (p *partition) lookUp(ctx context.Context, pipe redis.Pipeliner, id string, ended bool) *lookup {
	l := &lookup{
		id:         id,
		attempts:   pipe.HGet(ctx, p.keys[keyAttempts], id),
		record:     pipe.HGet(ctx, p.keys[keyMessages], id),
		deadLetter: pipe.HGet(ctx, p.keys[keyDeadLetters], id),
	}
	if ended {
		for i := range l.ended {
			l.ended[i] = pipe.HGet(ctx, p.keys[keyEnded+i], id)
		}
	}
	return l
}

// entry adds the commands for what an Entry has beside a Status.
func (l *lookup) entry(ctx context.Context, pipe redis.Pipeliner, p *partition, key string) {
	l.due = pipe.ZScore(ctx, p.keys[keyWaiting], memberOf(l.id, key))
	l.claimEnds = pipe.ZScore(ctx, p.keys[keyRunning], memberOf(l.id, key))
}

// err is why Redis did not reply, or nil.
func (l *lookup) err() error {
	for _, cmd := range append([]*redis.StringCmd{l.attempts, l.record, l.deadLetter}, l.ended[:]...) {
		if cmd == nil || cmd.Err() == nil || errors.Is(cmd.Err(), redis.Nil) {
			continue
		}
		return cmd.Err()
	}
	return nil
}

// stored is what Redis holds of a message.
type stored struct {
	ending
	record    record
	forgotten bool // a dead letter for which there was no room
}

// read reads a message. State is empty if there is none.
func (l *lookup) read() (s stored) {
	r, ok := readRecord(l.record.Val())
	s.record = r
	if deadLetter := l.deadLetter.Val(); deadLetter != "" {
		if s.ending, ok = readEnding(l.id, deadLetter); !ok {
			s.Status = Status{ID: l.id, Key: r.key, Name: r.name, Principal: r.principal, State: StateDead}
		}
		return s
	}
	if ok {
		s.Status = Status{
			ID: l.id, Key: r.key, Name: r.name, Principal: r.principal, State: StateQueued,
			EnqueuedAt: unixms.Time(r.enqueued), ExpiresAt: unixms.Time(r.notAfter),
		}
		if state := l.attempts.Val(); state != "" {
			if state[0] == 'r' || state[0] == 'R' {
				s.State = StateRunning
			}
			a, _ := readAttempts(state[1:])
			s.Attempts, s.Conflicts, s.Losses, s.Cause = a.attempts, a.conflicts, a.losses, a.cause
		}
		return s
	}
	for _, cmd := range l.ended {
		if cmd == nil {
			break
		}
		if e, ok := readEnding(l.id, cmd.Val()); ok {
			s.ending, s.forgotten = e, e.State == StateDead
			return s
		}
	}
	return s
}

// find looks a message up, also a dead letter whose id no job could have. Which partition has it
// depends on its key, which the caller does not know: all are asked at once.
func (q *Queue) find(ctx context.Context, op, id string) (stored, *partition, error) {
	m, err := q.agreed(ctx, op)
	if err != nil {
		return stored{}, nil, err
	}
	s, p, err := q.findIn(ctx, op, m, id)
	if p == nil && err == nil && time.Since(m.read) > manifestKnows { // Redis may have lost it, and the queue was begun anew
		was := m
		if m, err = q.reread(ctx, op); err == nil && len(m.partitions) != len(was.partitions) {
			s, p, err = q.findIn(ctx, op, m, id)
		}
	}
	if p == nil && err == nil {
		err = fmt.Errorf("delayqueue: %s of message %q in queue %q: %w", op, id, q.name, ErrNotFound)
	}
	return s, p, err
}

// findIn looks a message up in the partitions of a manifest. If there is none, p is nil.
func (q *Queue) findIn(ctx context.Context, op string, m *manifest, id string) (s stored, p *partition, err error) {
	lookups, backs := make([]*lookup, len(m.partitions)), make([]*redis.StringCmd, len(m.partitions))
	pipe := q.rdb.Pipeline()
	for i, p := range m.partitions {
		lookups[i] = p.lookUp(ctx, pipe, id, true)
		backs[i] = pipe.HGet(ctx, p.keys[keyCounts], "back")
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, l := range lookups {
		if s := l.read(); s.State != "" {
			p := m.partitions[i]
			p.age(ctx, &s, time.Duration(number(backs[i].Val()))*time.Millisecond)
			s.Cause = q.cause(s.Status)
			return s, p, nil
		}
		if failed := l.err(); failed != nil { // a partition that is down does not hide what others have
			err = redisError(ctx, op, failed)
		}
	}
	return stored{}, nil, err
}

// age changes the status of a queued message that is too old to expired: a worker will do that
// later. The partition's clock decides, which is ahead of that of Redis if that was set back. What is queued after that is too old, and not
// what was before: it may have been started since, in time.
func (p *partition) age(ctx context.Context, s *stored, back time.Duration) {
	if s.State != StateQueued || time.Now().Add(back).Before(s.ExpiresAt) {
		return
	}
	if reply, err := p.call(ctx, statsScript).Slice(); err == nil && number(reply[0]) >= unixms.Of(s.ExpiresAt) {
		pipe := p.queue.rdb.Pipeline()
		l := p.lookUp(ctx, pipe, s.ID, true)
		_, _ = pipe.Exec(ctx) // each command has its own error
		if now := l.read(); l.err() == nil && now.State != "" {
			*s = now
			if s.State == StateQueued && number(reply[0]) >= unixms.Of(s.ExpiresAt) { // else it was stored again
				s.State = StateExpired
			}
		}
	}
}

// cause opens the cause in a status. One that a script wrote is not sealed.
func (q *Queue) cause(s Status) string {
	if q.sealer == nil || !strings.HasPrefix(s.Cause, keyring.Magic) {
		return s.Cause
	}
	cause, err := q.sealer.open(kindCause, sealedOf{s.ID, s.Key, s.Name, s.Principal}, []byte(s.Cause))
	if err != nil {
		return err.Error()
	}
	return string(cause)
}

// Status returns where a message is in its life. For an id that was never stored, or is no longer
// remembered, the error is [ErrNotFound].
func (q *Queue) Status(ctx context.Context, id string) (Status, error) {
	if checkID(id) != nil {
		return Status{}, fmt.Errorf("delayqueue: status: %w", ErrNotFound)
	}
	s, _, err := q.find(ctx, "status", id)
	return s.Status, err
}

// Result returns what the handler of a message that is done, or dead, gave to [SetResult]. For a
// message in another state, without a result, or no longer remembered, the error is [ErrNotFound].
// If the Queue's Keyring cannot open the result it is [ErrSealed]. It takes two round trips, and
// one for a dead letter.
func (q *Queue) Result(ctx context.Context, id string) ([]byte, error) {
	if checkID(id) != nil {
		return nil, fmt.Errorf("delayqueue: result: %w", ErrNotFound)
	}
	s, p, err := q.find(ctx, "result", id)
	if err != nil {
		return nil, err
	}
	of := sealedOf{id, s.Key, s.Name, s.Principal}
	switch {
	case s.resultSize == 0 || s.State != StateDone && s.State != StateDead:
		return nil, fmt.Errorf("delayqueue: result of message %q in queue %q: %w", id, q.name, ErrNotFound)
	case s.State == StateDead:
		return q.sealer.open(kindResult, of, []byte(s.result))
	}
	pipe := q.rdb.Pipeline()
	var found [buckets]*redis.StringCmd
	for i := range found {
		found[i] = pipe.HGet(ctx, p.keys[keyResults+i], id)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, redisError(ctx, "result", err)
	}
	for _, cmd := range found {
		if result, err := cmd.Bytes(); err == nil {
			return q.sealer.open(kindResult, of, result)
		}
	}
	return nil, fmt.Errorf("delayqueue: result of message %q in queue %q: %w: it ended, and its result is not stored any more", id, q.name, ErrNotFound)
}

// Payload returns the payload of a message that is queued, running or dead: what was enqueued,
// which may be confidential. Payloads of other messages are not stored: [ErrNotFound], as for ids
// that are not known. With [WithEncryption] it is opened; if it cannot be opened the error is
// [ErrSealed]. It takes a round trip, and two for a long payload.
func (q *Queue) Payload(ctx context.Context, id string) ([]byte, error) {
	s, p, err := q.find(ctx, "payload", id)
	if err != nil {
		return nil, err
	}
	notKept := fmt.Errorf("delayqueue: payload of message %q in queue %q: %w: it is %s, its payload is not kept", id, q.name, ErrNotFound, s.State)
	if s.State.Ended() && s.State != StateDead || s.record.seq == "" {
		return nil, notKept
	}
	payload := []byte(s.record.payload)
	if s.record.body {
		payload, err = q.rdb.Get(ctx, p.payloadKey(id)).Bytes()
		if errors.Is(err, redis.Nil) {
			return nil, notKept
		} else if err != nil {
			return nil, redisError(ctx, "payload", err)
		}
	}
	_, payload, err = q.open(sealedOf{id, s.Key, s.Name, s.Principal}, payload)
	return payload, err
}

// Peek returns what the queue knows of a message in any state, without its payload and its result:
// for these there are [Queue.Payload] and [Queue.Result]. For an id that was never stored, or is no
// longer remembered, the error is [ErrNotFound]. It takes two round trips.
func (q *Queue) Peek(ctx context.Context, id string) (Entry, error) {
	for {
		s, p, err := q.find(ctx, "peek", id)
		if err != nil {
			return Entry{}, err
		}
		pipe := q.rdb.Pipeline()
		l := p.lookUp(ctx, pipe, id, true)
		l.entry(ctx, pipe, p, s.Key)
		_, _ = pipe.Exec(ctx) // each command has its own error
		if err := l.err(); err != nil {
			return Entry{}, redisError(ctx, "peek", err)
		}
		e := q.entry(l)
		if e.State == StateQueued && s.State == StateExpired {
			e.State, e.DueAt = StateExpired, time.Time{}
		}
		if e.State != "" { // else it is gone since it was found
			return e, nil
		}
	}
}

// entry reads a message that was looked at, with what an Entry has beside a Status.
func (q *Queue) entry(l *lookup) Entry {
	s := l.read()
	e := Entry{Status: s.Status, EndedAt: s.ended, ResultSize: s.resultSize}
	e.Cause = q.cause(e.Status)
	if !e.State.Ended() || e.State == StateDead {
		e.PayloadSize = int64(len(s.record.payload) + s.record.bodySize)
	}
	switch e.State {
	case StateQueued:
		if e.DueAt = e.EnqueuedAt; l.due.Err() == nil {
			e.DueAt = unixms.Time(int64(l.due.Val()))
		}
	case StateRunning:
		if l.claimEnds.Err() == nil {
			e.ClaimEnds = unixms.Time(int64(l.claimEnds.Val()))
		}
	default:
	}
	return e
}
