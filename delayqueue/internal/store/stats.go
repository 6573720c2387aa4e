package store

import (
	"context"
	"slices"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Counts are what stats.lua answers of a partition, by its clock.
type Counts struct {
	Now                                time.Time
	Queued, Running, Dead, Due, Halted int64
	OldestDue                          time.Time // zero if nothing is due
	ClockBack                          time.Duration
	Claimed, PausedUntil               time.Time // zero if it never was
	Bytes                              int64
	Totals                             [9]int64 // enqueued, done, retried, expired, cancelled, died, redriven, purged, superseded
}

// Counts reads the counts of partitions. With anyAge dead letters count until somebody removes them.
func (s *Store) Counts(ctx context.Context, parts []*Partition, anyAge time.Duration) ([]Counts, error) {
	spans := s.spans
	if anyAge > 0 {
		spans = slices.Clone(spans)
		spans[1] = anyAge.Milliseconds()
	}
	all := make([]Counts, len(parts))
	for i, call := range s.each(ctx, parts, statsScript, spans...) {
		reply, err := call.Slice()
		if err == nil && !all[i].read(reply) {
			err = luascript.ErrReply
		}
		if err != nil {
			return nil, Unavailable(ctx, "stats", err)
		}
	}
	return all, nil
}

func (c *Counts) read(reply []any) bool {
	if len(reply) != 10 {
		return false
	}
	const own = 5 // of the fields that are no totals
	fields, _ := reply[8].([]any)
	if len(fields) != own+len(c.Totals) {
		return false
	}
	all, letters := number(reply[1]), number(reply[2])
	c.Now = time.UnixMilli(number(reply[0]))
	c.Running, c.Dead, c.Due, c.Halted = number(reply[3]), number(reply[4]), number(reply[5]), number(reply[7])
	c.Queued = max(0, all-letters-c.Running)
	if c.Due > 0 && reply[6] != "" {
		c.OldestDue = time.UnixMilli(number(reply[6]))
	}
	c.ClockBack = time.Duration(number(reply[9])) * time.Millisecond
	for i, at := range []*time.Time{&c.Claimed, &c.PausedUntil} {
		if ms := number(fields[i]); ms > 0 {
			*at = time.UnixMilli(ms)
		}
	}
	for _, n := range fields[2:own] {
		c.Bytes += number(n)
	}
	for i := range c.Totals {
		c.Totals[i] = number(fields[own+i])
	}
	return true
}

// Pause keeps everybody from claiming in partitions for d; zero ends it.
func (s *Store) Pause(ctx context.Context, op string, parts []*Partition, d time.Duration) (err error) {
	for _, call := range s.each(ctx, parts, untilScript, append(slices.Clip(s.spans), "paused", Milliseconds(d))...) {
		if failed := call.Err(); failed != nil {
			err = Unavailable(ctx, op, failed)
		}
	}
	return err
}

// Await has the partition publish the ends of messages for d.
func (p *Partition) Await(ctx context.Context, d time.Duration) error {
	return p.call(ctx, untilScript, "awaited", d.Milliseconds()).Err()
}

// Manifest reads the manifest of a queue, its revision, layout, partitions, service, and whether it is encrypted, and before that sets
// fields of it, if it still has the revision that is the first of change.
func (s *Store) Manifest(ctx context.Context, key string, change ...any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	return manifestReply(manifestScript.Run(ctx, s.Client, []string{key}, change...).StringSlice())
}

// Manifests reads the manifests of queues, all at once: each has its own error.
func (s *Store) Manifests(ctx context.Context, keys []string) (replies [][]string, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	calls := make([]*luascript.Call, len(keys))
	for i, key := range keys {
		call := manifestScript.Prepare(ctx, []string{key})
		calls[i] = &call
	}
	_ = luascript.Pipeline(ctx, s.Client, calls)
	for _, call := range calls {
		reply, err := manifestReply(call.StringSlice())
		replies, errs = append(replies, reply), append(errs, err)
	}
	return replies, errs
}

func manifestReply(reply []string, err error) ([]string, error) {
	if err == nil && len(reply) != 5 {
		err = luascript.ErrReply
	}
	return reply, err
}
