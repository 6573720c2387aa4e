package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Info is what the manifest of a queue says; see [Queues] and [Queue.Info].
type Info struct {
	Name string
	// Service is the service that the queue belongs to; see [WithService]. Empty: none.
	Service string
	// Partitions is how many partitions the queue has; see [WithPartitions].
	Partitions int
	// Encrypted: its payloads, results and causes are sealed; see [WithEncryption].
	Encrypted bool
	// Err is why the manifest cannot be read, [ErrOtherLayout], or nil. If it is not nil, only Name is set.
	Err error
}

// Queues returns the queues under a prefix ([WithPrefix]; empty: the default), in the order of
// their names. A queue is known once a process has used it. It takes two round trips, and no SCAN.
//
// A queue is missing if all its processes have run under a release that had no list of names:
// [Open] opens it by its name.
func Queues(ctx context.Context, rdb redis.UniversalClient, prefix string) ([]Info, error) {
	if nilcheck.IsNil(rdb) {
		return nil, invalidOption("Queues: the redis client is nil")
	}
	if prefix == "" {
		prefix = ident.DefaultPrefix
	}
	if !ident.ValidPrefix(prefix) {
		return nil, invalidOption("Queues: prefix %q: want 1 to %d bytes, without braces, white space and control bytes", prefix, ident.MaxPrefixLen)
	}
	bounded, cancel := context.WithTimeout(ctx, store.CommandTimeout)
	defer cancel()
	names, err := rdb.ZRange(bounded, namesKey(prefix), 0, -1).Result()
	if err != nil {
		return nil, store.Unavailable(ctx, "queues", err)
	}
	var queues []*Queue
	var keys []string
	for _, name := range names {
		if q, err := New(rdb, name, WithPrefix(prefix), forOperator); err == nil { // else it is somebody else's entry
			queues, keys = append(queues, q), append(keys, q.manifests.manifestKey())
		}
	}
	replies, errs := store.New(store.Settings{Client: rdb}).Manifests(bounded, keys)
	var all []Info
	for i, q := range queues {
		m, err := q.manifests.readManifest(ctx, "queues", replies[i], errs[i])
		switch {
		case errors.Is(err, ErrOtherLayout):
			all = append(all, Info{Name: q.name, Err: err})
		case err != nil:
			return nil, err
		case m.partitions != nil: // else its first process died before it wrote the manifest, or somebody removed it
			all = append(all, q.manifests.info(m))
		}
	}
	return all, nil
}

// Open returns a queue for its operator, who knows only its name and prefix: the number of
// partitions, and whether it is encrypted, are those of its manifest. If there is no manifest the
// error is [ErrNoQueue]. rdb stays the caller's to close.
//
// The Queue can be inspected (Stats, List, Line, Count, Status, Peek, Result, Payload, Wait) and
// operated (Pause, Resume, Cancel, Redrive, Purge, and CancelAll, RedriveAll and PurgeAll). It
// never writes the manifest. Enqueue returns [ErrOperator], and NewWorker refuses it. Without
// [WithEncryption] sealed data stays sealed: [ErrSealed].
//
// The options of the queue's own processes are not known to it. So nothing bounds what is redriven.
// Stats counts dead letters until a worker removes them, even if they are too old. And the status
// of a message that is cancelled is stored for the [WithRetention] that is given here.
func Open(ctx context.Context, rdb redis.UniversalClient, name string, opts ...Option) (*Queue, error) {
	q, err := New(rdb, name, append([]Option{forOperator}, opts...)...)
	if err != nil {
		return nil, err
	}
	if _, err := q.manifests.reread(ctx, "open"); err != nil {
		return nil, err
	}
	return q, nil
}

// Info returns what the queue's manifest says. It takes a round trip.
func (q *Queue) Info(ctx context.Context) (Info, error) {
	m, err := q.manifests.reread(ctx, "info")
	if err != nil {
		return Info{Name: q.name}, err
	}
	return q.manifests.info(m), nil
}

func (q *manifests) info(m *manifest) Info {
	return Info{Name: q.name, Service: m.service, Partitions: len(m.partitions), Encrypted: m.encrypted}
}

// forOperator makes a Queue an operator's. It has no bounds, so that nothing is refused, or
// forgotten early, that the bounds of the queue's processes allow.
func forOperator(q *settings) error {
	q.operator = true
	q.maxDepth, q.maxDepthPerKey = math.MaxInt32, math.MaxInt32
	q.maxBytes, q.maxBytesPerKey, q.maxBytesPerPrincipal = maxBytes, maxBytes, maxBytes
	return nil
}

func (q *manifests) operatorOnly(op string) error {
	return fmt.Errorf("delayqueue: %s in %q: %w: use New", op, q.name, ErrOperator)
}

// namesKey is the key with the names of a prefix's queues. No queue has a key of that name: theirs
// have braces.
func namesKey(prefix string) string { return prefix + ":queue:names" }

// enlist adds the queue to the names of its prefix, once, before its manifest is written. If that
// fails, except for lack of rights, it is tried again when the manifest is next read. Only the
// first process of the queue waits for it.
func (q *manifests) enlist(ctx context.Context, m *manifest) {
	if m.revision == "" {
		q.enlistNow(ctx)
	} else if !q.listed.Load() {
		go q.enlistNow(context.Background())
	}
}

func (q *manifests) enlistNow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, store.CommandTimeout)
	defer cancel()
	err := q.store.Client.ZAdd(ctx, namesKey(q.prefix), redis.Z{Member: q.name}).Err()
	q.listed.Store(err == nil || redis.HasErrorPrefix(err, "NOPERM "))
}
