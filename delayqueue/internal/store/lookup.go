package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/unixms"
)

// Found is what Redis holds of a message. Its State is None if there is nothing.
type Found struct {
	Ending
	Size      int64  // of its payload
	Forgotten bool   // a dead letter for which there was no room
	inline    string // its payload, if that is in its record
	long      bool   // its payload is not in its record
	readable  bool   // it has a record
	// Of an Entry: when a queued message may be started, zero if it is not known; and when the claim of a running one ends.
	Due, ClaimEnds time.Time
}

// Lookup looks one message up in one partition: it has the commands of a pipeline.
type Lookup struct {
	id                           string
	attempts, record, deadLetter *redis.StringCmd
	ended                        [2 * Buckets]*redis.StringCmd // nil: not asked
	due, claimEnds               *redis.FloatCmd               // nil: not asked
}

// LookUp adds the lookup of a message to a pipeline. The order of the commands matters, since the
// message may move on meanwhile: if it is not in one place any more, it is in a later one.
func (p *Partition) LookUp(ctx context.Context, pipe redis.Pipeliner, id string, ended bool) *Lookup {
	l := &Lookup{
		id:         id,
		attempts:   pipe.HGet(ctx, p.Keys[KeyAttempts], id),
		record:     pipe.HGet(ctx, p.Keys[KeyMessages], id),
		deadLetter: pipe.HGet(ctx, p.Keys[KeyDeadLetters], id),
	}
	if ended {
		for i := range l.ended {
			l.ended[i] = pipe.HGet(ctx, p.Keys[KeyEnded+i], id)
		}
	}
	return l
}

// withTimes adds the commands for the times of a message.
func (l *Lookup) withTimes(ctx context.Context, pipe redis.Pipeliner, p *Partition, key string) *Lookup {
	l.due = pipe.ZScore(ctx, p.Keys[KeyWaiting], MemberOf(l.id, key))
	l.claimEnds = pipe.ZScore(ctx, p.Keys[KeyRunning], MemberOf(l.id, key))
	return l
}

// Err is why Redis did not reply, or nil.
func (l *Lookup) Err() error {
	for _, cmd := range append([]*redis.StringCmd{l.attempts, l.record, l.deadLetter}, l.ended[:]...) {
		if cmd == nil || cmd.Err() == nil || errors.Is(cmd.Err(), redis.Nil) {
			continue
		}
		return cmd.Err()
	}
	return nil
}

// Read reads the message once the pipeline has run.
func (l *Lookup) Read() (f Found) {
	r, ok := readRecord(l.record.Val())
	f.inline, f.long, f.readable, f.Size = r.payload, r.long, ok, int64(len(r.payload)+r.longSize)
	if deadLetter := l.deadLetter.Val(); deadLetter != "" {
		if f.Ending, ok = ReadEnding(l.id, deadLetter); !ok {
			f.Status = Status{ID: l.id, Key: r.key, Name: r.name, Principal: r.principal, State: Dead}
		}
		return f
	}
	if ok {
		f.Status = Status{
			ID: l.id, Key: r.key, Name: r.name, Principal: r.principal, State: Queued,
			EnqueuedAt: unixms.Time(r.enqueued), ExpiresAt: unixms.Time(r.notAfter),
		}
		if state := l.attempts.Val(); state != "" {
			if state[0] == 'r' || state[0] == 'R' {
				f.State = Running
			}
			a, _ := ReadAttempts(state[1:])
			f.Attempts, f.Conflicts, f.Losses, f.Cause = a.Attempts, a.Conflicts, a.Losses, a.Cause
		}
		f.Due, f.ClaimEnds = timeOf(l.due), timeOf(l.claimEnds)
		return f
	}
	for _, cmd := range l.ended {
		if cmd == nil {
			break
		}
		if e, ok := ReadEnding(l.id, cmd.Val()); ok {
			f.Ending, f.Forgotten = e, e.State == Dead
			return f
		}
	}
	return f
}

func timeOf(score *redis.FloatCmd) time.Time {
	if score == nil || score.Err() != nil {
		return time.Time{}
	}
	return unixms.Time(int64(score.Val()))
}

// Find looks a message up in partitions. Which of them has it depends on its key, which the caller does not know: all are asked at
// once. If there is none, p is nil.
func (s *Store) Find(ctx context.Context, op string, parts []*Partition, id string) (f Found, p *Partition, err error) {
	lookups, backs := make([]*Lookup, len(parts)), make([]*redis.StringCmd, len(parts))
	pipe := s.Client.Pipeline()
	for i, p := range parts {
		lookups[i] = p.LookUp(ctx, pipe, id, true)
		backs[i] = pipe.HGet(ctx, p.Keys[KeyCounts], "back")
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, l := range lookups {
		if f := l.Read(); f.State != None {
			parts[i].age(ctx, &f, time.Duration(number(backs[i].Val()))*time.Millisecond)
			return f, parts[i], nil
		}
		if failed := l.Err(); failed != nil { // a partition that is down does not hide what others have
			err = Unavailable(ctx, op, failed)
		}
	}
	return Found{}, nil, err
}

// age changes the status of a queued message that is too old to expired: a worker will do that
// later. The partition's clock decides, which is ahead of that of Redis if that was set back. What is queued after that is too old, and not
// what was before: it may have been started since, in time.
func (p *Partition) age(ctx context.Context, f *Found, back time.Duration) {
	if f.State != Queued || time.Now().Add(back).Before(f.ExpiresAt) {
		return
	}
	if reply, err := p.call(ctx, statsScript).Slice(); err == nil && number(reply[0]) >= unixms.Of(f.ExpiresAt) {
		pipe := p.store.Client.Pipeline()
		l := p.LookUp(ctx, pipe, f.ID, true)
		_, _ = pipe.Exec(ctx) // each command has its own error
		if now := l.Read(); l.Err() == nil && now.State != None {
			*f = now
			if f.State == Queued && number(reply[0]) >= unixms.Of(f.ExpiresAt) { // else it was stored again
				f.State = Expired
			}
		}
	}
}

// Look reads a message of a key, with its times.
func (p *Partition) Look(ctx context.Context, op, id, key string) (Found, error) {
	pipe := p.store.Client.Pipeline()
	l := p.LookUp(ctx, pipe, id, true).withTimes(ctx, pipe, p, key)
	_, _ = pipe.Exec(ctx) // each command has its own error
	if err := l.Err(); err != nil {
		return Found{}, Unavailable(ctx, op, err)
	}
	return l.Read(), nil
}

// GoesOn reports whether a message has not ended. It costs two commands, fewer than Find.
func (p *Partition) GoesOn(ctx context.Context, id string) bool {
	pipe := p.store.Client.Pipeline()
	open, dead := pipe.HStrLen(ctx, p.Keys[KeyMessages], id), pipe.HStrLen(ctx, p.Keys[KeyDeadLetters], id)
	_, err := pipe.Exec(ctx)
	return err == nil && open.Val() > 0 && dead.Val() == 0
}

// Result reads the result of a message that is done. It reports false if there is none any more.
func (p *Partition) Result(ctx context.Context, id string) (result []byte, ok bool, err error) {
	pipe := p.store.Client.Pipeline()
	var found [Buckets]*redis.StringCmd
	for i := range found {
		found[i] = pipe.HGet(ctx, p.Keys[KeyResults+i], id)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, false, Unavailable(ctx, "result", err)
	}
	for _, cmd := range found {
		if result, err := cmd.Bytes(); err == nil {
			return result, true, nil
		}
	}
	return nil, false, nil
}

// Payload reads the payload of a message that was found. It reports false if that is not stored any more.
func (p *Partition) Payload(ctx context.Context, f Found) (payload []byte, ok bool, err error) {
	if !f.long {
		return []byte(f.inline), f.readable, nil
	}
	payload, err = p.store.Client.Get(ctx, p.PayloadKey(f.ID)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, Unavailable(ctx, "payload", err)
	}
	return payload, true, nil
}

// Open is how many messages, dead letters among them, partitions have together.
func (s *Store) Open(ctx context.Context, op string, parts []*Partition) (total int64, err error) {
	pipe := s.Client.Pipeline()
	open := make([]*redis.IntCmd, len(parts))
	for i, p := range parts {
		open[i] = pipe.HLen(ctx, p.Keys[KeyMessages])
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, Unavailable(ctx, op, err)
	}
	for _, cmd := range open {
		total += cmd.Val()
	}
	return total, nil
}
