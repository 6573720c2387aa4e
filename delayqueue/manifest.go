package delayqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// manifest is what all processes of a queue agree on, as this one has read it.
// docs/protocol.md explains its fields.
type manifest struct {
	revision   string             // "" if there is none
	partitions []*store.Partition // nil if there is none
	service    string
	encrypted  bool
	read       time.Time
}

// manifests are a Queue's: what it knows of its manifest, and how it reads and writes it.
type manifests struct {
	*settings
	store      *store.Store
	partitions []*store.Partition       // those of a new queue
	known      atomic.Pointer[manifest] // nil until it was read
	reader     chan struct{}            // holds one while it is read
	rereading  atomic.Bool              // beside the commands
	size       int                      // how many partitions it works with; 0: not known yet. Who holds reader may use it
	madeMu     sync.Mutex
	made       []*store.Partition // other than partitions
	listed     atomic.Bool        // its name is among those of the prefix
}

const (
	layoutVersion = "4"
	// A manifest that was read manifestFresh ago is read again beside the command that needs it; one that was
	// read manifestTrusted ago, before it.
	manifestFresh   = time.Minute
	manifestTrusted = 30 * time.Minute
	// A message that is not found is looked for again by a manifest that was read at most so long ago.
	manifestKnows = time.Second
	// How often a command tries again after another process has changed the manifest meanwhile.
	manifestTries = 20
)

// of returns the partition of a key, or without a key that of an id.
func (m *manifest) of(key, id string) *store.Partition { return store.Of(m.partitions, key, id) }

// sized returns the queue's partitions if they are so many, and makes them if they were not made before.
func (q *manifests) sized(n int) []*store.Partition {
	if n == len(q.partitions) {
		return q.partitions
	}
	q.madeMu.Lock()
	defer q.madeMu.Unlock()
	if n != len(q.made) {
		q.made = q.store.Partitions(n)
	}
	return q.made
}

// agreed returns the queue's manifest. It reads it from Redis at first, and from time to time.
func (q *manifests) agreed(ctx context.Context, op string) (*manifest, error) {
	m := q.known.Load()
	if m == nil {
		return q.reread(ctx, op)
	}
	switch age := time.Since(m.read); {
	case age < manifestFresh:
	case age >= manifestTrusted:
		return q.reread(ctx, op)
	case q.rereading.CompareAndSwap(false, true):
		go func() {
			defer q.rereading.Store(false)
			ctx, cancel := context.WithTimeout(context.Background(), store.CommandTimeout)
			defer cancel()
			_, _ = q.reread(ctx, op) // else it is trusted for some time more
		}()
	}
	return m, nil
}

// reread reads the manifest: read → write it if there is none, or lacks what this process adds.
// Callers that arrive meanwhile share the result.
func (q *manifests) reread(ctx context.Context, op string) (*manifest, error) {
	asked := time.Now()
	select {
	case q.reader <- struct{}{}:
		defer func() { <-q.reader }()
	case <-ctx.Done():
		return nil, store.CallerGone(ctx, op)
	}
	if m := q.known.Load(); m != nil && m.read.After(asked) {
		return m, nil
	}
	var change []any // of what was read
	for range manifestTries {
		began := time.Now()
		m, err := q.callManifest(ctx, op, change...)
		if err == nil {
			change, err = q.due(ctx, op, m)
		}
		if err != nil {
			if isRefusal(err) {
				q.known.Store(nil)
			}
			return nil, err
		}
		if len(change) == 0 {
			m.read, q.size = began, len(m.partitions)
			q.known.Store(m)
			return m, nil
		}
		change = slices.Insert(change, 0, any(m.revision))
	}
	return nil, store.Unavailable(ctx, op, errors.New("the manifest changes all the time"))
}

// due returns what is to be set in a manifest before it is used, or why this process must not use the queue.
func (q *manifests) due(ctx context.Context, op string, m *manifest) (change []any, err error) {
	switch {
	case m.partitions != nil:
		err = q.refuses(op, m)
	case q.operator:
		err = fmt.Errorf("delayqueue: %s in %q: %w under the prefix %q", op, q.name, ErrNoQueue, q.prefix)
	}
	if err != nil || q.operator {
		return nil, err
	}
	q.enlist(ctx, m)
	if m.partitions == nil {
		change = append(change, "layout", layoutVersion, "partitions", cmp.Or(q.size, len(q.partitions)))
		if was := q.known.Load(); was != nil && was.encrypted {
			change = append(change, "encrypted", "1")
		}
		if q.service != "" {
			change = append(change, "service", q.service)
		}
		return change, nil
	}
	if m.service == "" && q.service != "" {
		change = append(change, "service", q.service)
	}
	if !m.encrypted && q.sealer.seals() {
		if err := q.checkUnsealed(ctx, op, m); err != nil {
			return nil, err
		}
		change = append(change, "encrypted", "1")
	}
	return change, nil
}

// callManifest reads the manifest. With a revision, fields and values it first sets them, if that
// is still the revision.
func (q *manifests) callManifest(ctx context.Context, op string, change ...any) (*manifest, error) {
	reply, err := q.store.Manifest(ctx, q.manifestKey(), change...)
	return q.readManifest(ctx, op, reply, err)
}

// readManifest reads what Redis has of the manifest.
func (q *manifests) readManifest(ctx context.Context, op string, reply []string, err error) (*manifest, error) {
	other := func(format string, args ...any) error {
		return fmt.Errorf("delayqueue: %s in %q: %w: %s of %s", op, q.name, ErrOtherLayout, fmt.Sprintf(format, args...), q.manifestKey())
	}
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // after "ERR " and more on Redis 6
		return nil, other("this release cannot read the type")
	} else if err != nil {
		return nil, store.Unavailable(ctx, op, err)
	}
	layout, partitions := reply[1], reply[2]
	m := &manifest{revision: reply[0], service: reply[3], encrypted: reply[4] != ""}
	if m.revision == "" && layout == "" {
		return m, nil
	}
	if layout != layoutVersion {
		return nil, other("this release knows layout %s, not the layout %q", layoutVersion, layout)
	}
	n, err := strconv.Atoi(partitions)
	if err != nil || n < 1 || n > maxPartitions {
		return nil, other("this release cannot read the partitions %q", partitions)
	}
	m.partitions = q.sized(n)
	return m, nil
}

func (q *manifests) manifestKey() string {
	return fmt.Sprintf("%s:queue:{%s}:manifest", q.prefix, q.name)
}

// refuses returns why this process must not use the queue, or nil.
func (q *manifests) refuses(op string, m *manifest) error {
	if m.service != "" && q.service != "" && m.service != q.service {
		return fmt.Errorf("delayqueue: %s in %q: %w: it is of service %q, and this process is %q (WithService): give this one's queue another name "+
			"or prefix; if the service was renamed, set the field service of %s", op, q.name, ErrOtherService, m.service, q.service, q.manifestKey())
	}
	if n := len(m.partitions); q.size != 0 && n != q.size && !q.operator {
		return fmt.Errorf("delayqueue: %s in %q: %w: it has %d partitions, says the field partitions of %s, and this process was to use %d (WithPartitions): "+
			"the number never changes, so use %[4]d, or for another number a queue of another name, and serve both until `perkey queue` shows the first one empty",
			op, q.name, ErrOtherLayout, n, q.manifestKey(), q.size)
	}
	return nil
}

// lacksKeys returns why this process must neither store nor run messages, though it may operate the
// queue, or nil.
func (q *manifests) lacksKeys(op string, m *manifest) error {
	if q.operator {
		return q.operatorOnly(op)
	}
	if !m.encrypted || q.sealer != nil {
		return nil
	}
	return fmt.Errorf("delayqueue: %s in %q: %w: its messages are sealed, says the field encrypted of %s: give this process the Keyring of the others (WithEncryption)",
		op, q.name, ErrOtherEncryption, q.manifestKey())
}

func isRefusal(err error) bool {
	return errors.Is(err, ErrOtherLayout) || errors.Is(err, ErrOtherService) || errors.Is(err, ErrOtherEncryption) || errors.Is(err, ErrNoQueue)
}

// checkUnsealed fails if the queue has messages that were stored before it was encrypted, and that
// this process would not open.
func (q *manifests) checkUnsealed(ctx context.Context, op string, m *manifest) error {
	if q.sealer.ring.AcceptsUnsealed() {
		return nil
	}
	open, err := q.store.Open(ctx, op, m.partitions)
	if err != nil || open == 0 {
		return err
	}
	if now, err := q.callManifest(ctx, op); err != nil || now.encrypted {
		return err // encrypted since m was read: the messages are sealed, and the caller's change fails
	}
	return fmt.Errorf("delayqueue: %s in %q: %w: it has messages that are not sealed: let a process without WithEncryption run it empty, "+
		"and purge its dead letters, or set Keyring.AcceptUnsealed", op, q.name, ErrOtherEncryption)
}
