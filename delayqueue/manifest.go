package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// manifest is what all processes of a queue agree on, as this one has read it.
// docs/protocol.md explains its fields, and the order of the steps.
type manifest struct {
	revision    string // "" if there is none
	generations []generation
	next        string // the generation that is to follow the last one, or ""
	service     string
	encrypted   bool
	totals      Totals // of generations that are gone

	partitions []*partition // of all generations, the oldest first
	read       time.Time
	trouble    error // why next could not be begun
}

// agreement is what a Queue knows of its manifest.
type agreement struct {
	manifest  atomic.Pointer[manifest] // nil until it was read
	reader    chan struct{}            // holds one while it is read
	rereading atomic.Bool              // beside the commands
	madeMu    sync.Mutex
	made      map[string][]*partition // by their generation
	splitTold sync.Once
	delayTold sync.Once
	listed    atomic.Bool // its name is among those of the prefix
}

// generation is the partitions that were made together.
type generation struct {
	number, size int
	partitions   []*partition
}

const (
	layoutVersion = "3"
	// A manifest that was read manifestFresh ago is read again beside the command that needs it; one that was
	// read manifestTrusted ago, before it. A closed partition says so for longer: see close.lua.
	manifestFresh   = time.Minute
	manifestTrusted = 30 * time.Minute
	// A message that is not found is looked for again by a manifest that was read at most so long ago.
	manifestKnows = time.Second
	// How often a command tries again after another process has changed the manifest meanwhile.
	manifestTries  = 20
	maxGenerations = 8
)

// current is the generation that stores new messages.
func (m *manifest) current() generation { return m.generations[len(m.generations)-1] }

// of returns the partitions where messages of a key may be, or without a key that of an id: the
// oldest generation first.
func (m *manifest) of(key, id string) []*partition {
	parts := make([]*partition, len(m.generations))
	for i, g := range m.generations {
		parts[i] = partitionOf(g.partitions, key, id)
	}
	return parts
}

// between returns the generations after one and before another one, the oldest first.
func (m *manifest) between(after, before int) (some []generation) {
	for _, g := range m.generations {
		if g.number > after && g.number < before {
			some = append(some, g)
		}
	}
	return some
}

func (g generation) String() string { return fmt.Sprintf("%d:%d", g.number, g.size) }

func readGeneration(s string) (number, size int, ok bool) {
	a, b, _ := strings.Cut(s, ":")
	number, err := strconv.Atoi(a)
	size, err2 := strconv.Atoi(b)
	return number, size, err == nil && err2 == nil && number > 0 && size > 0 && size <= maxPartitions
}

// generation returns the partitions of a generation, and makes them if they were not made before.
func (q *Queue) generation(number, size int) generation {
	g := generation{number: number, size: size}
	q.madeMu.Lock()
	defer q.madeMu.Unlock()
	if q.made == nil {
		q.made = map[string][]*partition{"1:" + strconv.Itoa(q.split): q.partitions}
	}
	g.partitions = q.made[g.String()]
	if g.partitions == nil {
		g.partitions = q.makePartitions(number, size)
		q.made[g.String()] = g.partitions
	}
	return g
}

// agreed returns the queue's manifest. It reads it from Redis at first, and from time to time.
func (q *Queue) agreed(ctx context.Context, op string) (*manifest, error) {
	m := q.manifest.Load()
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
			ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
			defer cancel()
			_, _ = q.reread(ctx, op) // else it is trusted for some time more
		}()
	}
	return m, nil
}

// stable returns the manifest, read anew, without a change in progress.
func (q *Queue) stable(ctx context.Context, op string) (*manifest, error) {
	m, err := q.reread(ctx, op)
	if err == nil {
		err = m.trouble
	}
	return m, err
}

// reread reads the manifest: read → write it if there is none → finish a change that another
// process has begun. Callers that arrive meanwhile share the result.
func (q *Queue) reread(ctx context.Context, op string) (*manifest, error) {
	asked := time.Now()
	select {
	case q.reader <- struct{}{}:
		defer func() { <-q.reader }()
	case <-ctx.Done():
		return nil, callerGone(ctx, op)
	}
	if m := q.manifest.Load(); m != nil && m.read.After(asked) {
		return m, nil
	}
	var change []any // of what was read
	for range manifestTries {
		began := time.Now()
		m, err := q.callManifest(ctx, op, change...)
		if err == nil && m.revision != "" {
			err = q.refuses(op, m)
		}
		if err == nil && q.operator {
			err = q.settled(op, m)
		} else if err == nil {
			q.enlist(ctx, m)
			change, err = q.due(ctx, op, m)
		}
		if err != nil {
			if isRefusal(err) {
				q.manifest.Store(nil)
			}
			return nil, err
		}
		if len(change) == 0 {
			m.read = began
			for _, p := range m.current().partitions {
				p.drained.Store(false) // it was, before Redis lost all
			}
			q.manifest.Store(m)
			q.tellSplit(m)
			return m, nil
		}
		change = slices.Insert(change, 0, any(m.revision))
	}
	return nil, redisError(ctx, op, errors.New("the manifest changes all the time"))
}

// due returns what is to be set in a manifest before it is used.
func (q *Queue) due(ctx context.Context, op string, m *manifest) (change []any, err error) {
	if m.revision == "" {
		was := q.manifest.Load()
		if was == nil {
			was = &manifest{generations: []generation{{number: 1, size: q.split}}}
		}
		change = append(change, "layout", layoutVersion, "generations", text(was.generations))
		if was.encrypted {
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
	if m.next != "" {
		number, size, _ := readGeneration(m.next)
		next := q.generation(number, size)
		if m.trouble = q.closeCurrent(ctx, op, m, next); m.trouble == nil {
			change = append(change, "generations", text(append(slices.Clip(m.generations), next)), "next", "")
		}
	}
	return change, nil
}

func text(generations []generation) string {
	words := make([]string, len(generations))
	for i, g := range generations {
		words[i] = g.String()
	}
	return strings.Join(words, " ")
}

// callManifest reads the manifest. With a revision, fields and values it first sets them, if that
// is still the revision.
func (q *Queue) callManifest(ctx context.Context, op string, change ...any) (*manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return q.readManifest(ctx, op, manifestScript.Run(ctx, q.rdb, []string{q.manifestKey()}, change...))
}

// readManifest reads the reply of manifest.lua.
func (q *Queue) readManifest(ctx context.Context, op string, cmd *redis.Cmd) (*manifest, error) {
	reply, err := cmd.StringSlice()
	if err == nil && len(reply) != 7 {
		err = luascript.ErrReply
	}
	other := func(format string, args ...any) error {
		return fmt.Errorf("delayqueue: %s in %q: %w: %s of %s", op, q.name, ErrOtherLayout, fmt.Sprintf(format, args...), q.manifestKey())
	}
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // after "ERR " and more on Redis 6
		return nil, other("this release cannot read the type")
	} else if err != nil {
		return nil, redisError(ctx, op, err)
	}
	layout, generations := reply[1], reply[2]
	m := &manifest{revision: reply[0], next: reply[3], service: reply[4], encrypted: reply[5] != "", totals: readTotals(reply[6])}
	if m.revision == "" && layout == "" {
		return m, nil
	}
	if layout != layoutVersion {
		return nil, other("this release knows layout %s, not the layout %q", layoutVersion, layout)
	}
	last := 0
	for word := range strings.FieldsSeq(generations) {
		number, size, ok := readGeneration(word)
		if !ok || number <= last {
			return nil, other("this release cannot read the generations %q", generations)
		}
		last = number
		m.generations = append(m.generations, q.generation(number, size))
	}
	number, _, ok := readGeneration(m.next)
	if last == 0 || m.next != "" && (!ok || number <= last) {
		return nil, other("this release cannot read the generations %q, next %q", generations, m.next)
	}
	for _, g := range m.generations {
		m.partitions = append(m.partitions, g.partitions...)
	}
	return m, nil
}

func (q *Queue) manifestKey() string { return fmt.Sprintf("%s:queue:{%s}:manifest", q.prefix, q.name) }

// refuses returns why this process must not use the queue, or nil.
func (q *Queue) refuses(op string, m *manifest) error {
	if m.service == "" || q.service == "" || m.service == q.service {
		return nil
	}
	return fmt.Errorf("delayqueue: %s in %q: %w: it is of service %q, and this process is %q (WithService): give this one's queue another name "+
		"or prefix; if the service was renamed, set the field service of %s", op, q.name, ErrOtherService, m.service, q.service, q.manifestKey())
}

// lacksKeys returns why this process must neither store nor run messages, though it may operate the
// queue, or nil.
func (q *Queue) lacksKeys(op string, m *manifest) error {
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
func (q *Queue) checkUnsealed(ctx context.Context, op string, m *manifest) error {
	if q.sealer.ring.AcceptsUnsealed() {
		return nil
	}
	pipe := q.rdb.Pipeline()
	for _, p := range m.partitions {
		pipe.HLen(ctx, p.keys[keyMessages])
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		return redisError(ctx, op, err)
	}
	for _, cmd := range cmds {
		if n, ok := cmd.(interface{ Val() int64 }); ok && n.Val() > 0 {
			if now, err := q.callManifest(ctx, op); err != nil || now.encrypted {
				return err // encrypted since m was read: the messages are sealed, and the caller's change fails
			}
			return fmt.Errorf("delayqueue: %s in %q: %w: it has messages that are not sealed: let a process without WithEncryption run it empty, "+
				"and purge its dead letters, or set Keyring.AcceptUnsealed", op, q.name, ErrOtherEncryption)
		}
	}
	return nil
}

// tellSplit warns once if the queue has another number of partitions than this process would make.
func (q *Queue) tellSplit(m *manifest) {
	if n := m.current().size; n != q.split && q.splitGiven {
		q.splitTold.Do(func() {
			slog.Warn("delayqueue: the queue has another number of partitions than WithPartitions says, which is only what a new queue is made with; Repartition changes it",
				slog.String("queue", q.name), slog.Int("partitions", n), slog.Int("option", q.split))
		})
	}
}
