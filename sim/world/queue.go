//go:build faketime

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// queue is a world of processes that store work in a queue and run it, beside fresh calls for the same keys.
func (w *world) queue() {
	r := newChance(w.config.Seed, 5)
	attempts, window := 2+r.IntN(4), pick(r, r.between(time.Second, 10*time.Second), 10*time.Minute)
	q := &queueWorkload{
		w: w, r: r, more: newChance(w.config.Seed, 10), auditor: newAuditor(w), ledger: newLedger(w, attempts, window), nodes: map[*process]*node{}, fails: r.one(2),
		options: []delayqueue.Option{
			delayqueue.WithPartitions(1 + r.IntN(3)), delayqueue.WithMaxPayload(2 << 20), delayqueue.WithMaxAttempts(attempts), delayqueue.WithReservationWindow(window),
		},
	}
	if r.one(4) {
		q.options = append(q.options, delayqueue.WithEncryption(delayqueue.Keyring{Current: "a", Keys: map[string][]byte{"a": []byte("an example of a key of 32 bytes!")}}))
	}
	if r.one(4) {
		q.halts, q.ledger.window = true, 0
		q.options = append(q.options, delayqueue.WithHaltOnDeath(pick(r, delayqueue.HaltParked, delayqueue.HaltKey)))
	}
	if r.one(4) {
		q.depth, q.perKey = 8+r.IntN(12), 3+r.IntN(5)
		q.options = append(q.options, delayqueue.WithPartitions(1), delayqueue.WithMaxDepth(q.depth), delayqueue.WithMaxDepthPerKey(q.perKey))
	}
	q.long = pick(newChance(w.config.Seed, 9), longest, longest, longest, longest, longest, longest, hugest)
	if r.one(4) {
		q.long = longest
		q.bytes, q.ledger.forgets = 120_000, true
		q.options = append(q.options, delayqueue.WithPartitions(1), delayqueue.WithMaxPayload(longest), delayqueue.WithMaxBytes(q.bytes))
	}
	q.debounces = q.more.one(4)
	q.claims = pick(r, time.Second, patient)
	q.ledger.patient = q.claims == patient
	q.keys, q.calls = queueKeys[:1+r.IntN(len(queueKeys))], some(r, queueCalls)
	go q.watch()
	w.startAll(q.work, q.stop)
	q.settle()
}

type queueWorkload struct {
	w         *world
	r, more   chance // more: for what came later, so that the decisions of r stay
	auditor   *auditor
	ledger    *ledger
	keys      []string
	calls     []string
	options   []delayqueue.Option
	halts     bool          // dead letters halt their keys
	claims    time.Duration // for how long a worker claims messages at least
	fails     bool          // handlers do, and end in other ways
	debounces bool          // half of the parked calls are
	nodes     map[*process]*node
	named     int
	long      int // how long the long payloads are

	depth, perKey int   // how many messages there may be, all in all and of a key; 0: many
	bytes         int64 // how long they may be
}

// node is the part of a process that belongs to the queue.
type node struct {
	queue  *delayqueue.Queue
	worker *delayqueue.Worker
	guard  *core.Guard
	quiet  *core.Guard // which debounces
	works  bool
	busy   int
	slots  int       // for how many messages its worker has room
	runs   int       // how many it runs
	full   time.Time // when it last ran as many as it can, or was stopped
}

func (n *node) start() {
	n.works = true
	if err := n.worker.Start(); err != nil {
		panic(err)
	}
}

// work is what a process does.
func (q *queueWorkload) work(p *process) {
	queue, err := delayqueue.New(p.rdb, "q", q.options...)
	if err != nil {
		panic(err)
	}
	n := &node{queue: queue, guard: p.locker.Guard(delayqueue.Policy(queue)), quiet: p.locker.Guard(delayqueue.Debounce(queue, quietPeriod, longestDelay)), slots: 1 + q.r.IntN(5)}
	q.nodes[p] = n
	n.worker, err = delayqueue.NewWorker(queue, p.locker, func(ctx context.Context, m delayqueue.Message) error { return q.handle(ctx, p, m) },
		delayqueue.WithConcurrency(n.slots), delayqueue.WithClaimLease(q.r.between(q.claims, 6*time.Second)),
		delayqueue.WithRetryBackoff(100*time.Millisecond, 2*time.Second), delayqueue.WithLogger(discard))
	if err != nil {
		panic(err)
	}
	if !q.r.one(5) || len(q.nodes) == 1 { // some processes only store
		n.start()
	}
	for g := range 3 {
		go func() {
			for i := 0; !p.over(); i++ {
				time.Sleep(q.r.between(0, 2*time.Second))
				n.busy++
				q.call(p, n, fmt.Sprintf("%s.%d.%d", p.name, g, i))
				n.busy--
			}
		}()
	}
}

var (
	queueKeys = []string{"k0", "k1", "k2", "k3"}
	// queueCalls are what a call can be, each as often as it stands here.
	queueCalls = []string{
		"enqueue", "enqueue", "enqueue", "keyless", "nameless", "delayed", "young", "coalesce", "debounce", "park", "park", "twice", "hold", "hold", "grab", "grab",
		"cancel", "status", "wait", "redrive", "pause", "burst", "saves", "repair",
	}
	// expected are the errors that the queue's calls may return, beside those of core.
	expected = []error{delayqueue.ErrFull, delayqueue.ErrRunning, delayqueue.ErrEnded, delayqueue.ErrNotDead}
)

// call makes one call.
func (q *queueWorkload) call(p *process, n *node, who string) {
	kind := pick(q.r, q.calls...)
	ctx, leave := context.WithTimeout(context.Background(), q.r.between(50*time.Millisecond, 8*time.Second))
	defer leave()
	q.w.report.Calls[kind]++
	q.w.emit(who, kind, "")
	var err error
	switch kind {
	case "cancel", "status", "wait", "redrive":
		if m := q.ledger.any(q.r); m != nil {
			err = q.ask(ctx, n, who, kind, m)
		}
	case "pause":
		if !q.r.one(6) { // what is promised while there is none is to be seen too
			return
		}
		d := q.r.between(time.Second, 3*time.Second)
		q.w.disturb(d)
		err = n.queue.Pause(ctx, d)
	case "burst":
		q.burst(ctx, n, who)
	case "saves": // somebody writes, and each word is saved
		for key := pick(q.r, q.keys...); err == nil && !q.r.one(8); time.Sleep(q.r.between(0, 30*time.Millisecond)) {
			err = q.enqueue(ctx, n, who, "coalesce", key)
		}
	case "repair":
		err = q.repair(ctx, n, who)
	case "hold", "grab":
		err = q.hold(ctx, p, who, kind == "grab")
	case "park":
		kind, guard := kind, n.guard
		if q.debounces && q.more.one(2) {
			kind, guard = "quiet", n.quiet
		}
		err = q.park(ctx, p, guard, kind, who)
	default:
		err = q.enqueue(ctx, n, who, kind, pick(q.r, q.keys...))
	}
	if err != nil {
		q.w.emit(who, "fails", "", err)
		if !documented(err, expected...) {
			q.w.violation(who, "%s: %v", kind, err)
		}
	}
}

// next makes a message that is about to be stored.
func (q *queueWorkload) next(kind, key string) *message {
	q.named++
	m := &message{id: fmt.Sprintf("m%d", q.named), kind: kind, key: key, called: time.Now(), maxAge: 15 * time.Minute}
	m.payload = append([]byte(m.id), ' ')
	if q.r.one(6) || q.long > longest { // a long one lies in a key of its own
		m.payload = bytes.Repeat(m.payload, q.long/len(m.payload))
	}
	q.ledger.add(m)
	return m
}

// longest is how long a payload is at most. Where a claim has no room for two, all are longer.
const longest, hugest = 5000, 1_100_000

// burst makes some calls at once.
func (q *queueWorkload) burst(ctx context.Context, n *node, who string) {
	var all sync.WaitGroup
	for i := range 2 + q.r.IntN(6) {
		all.Go(func() {
			kind := pick(q.r, "enqueue", "keyless", "delayed", "coalesce")
			if err := q.enqueue(ctx, n, fmt.Sprint(who, ".", i), kind, pick(q.r, q.keys...)); err != nil && !documented(err, expected...) {
				q.w.violation(who, "%s: %v", kind, err)
			}
		})
	}
	all.Wait()
}

// enqueue stores a job, and tries again for a while if it does not know whether it did.
func (q *queueWorkload) enqueue(ctx context.Context, n *node, who, kind, key string) error {
	if kind == "keyless" {
		key = ""
	}
	m := q.next(kind, key)
	job := delayqueue.Job{ID: m.id, Key: m.key, Payload: m.payload}
	switch kind {
	case "nameless": // the queue gives it an id
		job.ID = ""
	case "delayed":
		m.delay = q.r.between(time.Millisecond, 8*time.Second)
		job.Delay = m.delay
	case "young":
		m.maxAge = q.r.between(time.Second, 8*time.Second)
		job.MaxAge = m.maxAge
		if q.r.one(2) { // it is due when it is almost too old
			m.delay = m.maxAge - q.r.between(10*time.Millisecond, 400*time.Millisecond)
			job.Delay = m.delay
		}
	case "coalesce":
		m.principal = pick(q.r, "a", "b")
		job.Name, job.Principal, job.Coalesce = "latest", m.principal, true
	case "debounce":
		job.Name, job.Coalesce, job.QuietPeriod, job.MaxDelay = "quiet", true, quietPeriod, longestDelay
	}
	if kind == "twice" {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			receipt, err := n.queue.Enqueue(ctx, job)
			q.stored(m, receipt, err)
		}()
	}
	for {
		receipt, err := n.queue.Enqueue(ctx, job)
		q.w.emit(who, "enqueued", m.key, m.id, " ", err)
		q.stored(m, receipt, err)
		if err == nil || ctx.Err() != nil || kind == "nameless" || !errors.Is(err, core.ErrUnavailable) || q.r.one(4) {
			return err
		}
		time.Sleep(q.r.between(0, 400*time.Millisecond))
	}
}

const quietPeriod, longestDelay = time.Second, 5 * time.Second

// stored records what the queue said of a message that was to be stored.
func (q *queueWorkload) stored(m *message, receipt delayqueue.Receipt, err error) {
	if err == nil && m.kind == "nameless" {
		m.ticket = receipt.ID
	} else if err == nil && receipt.ID != m.id {
		q.w.violation("-", "%s is stored as %s", m.id, receipt.ID)
	}
	q.ledger.stored(m, receipt.Stored, err)
	q.bounds(m, err)
}

// park makes a fresh call, which is stored if its key is held.
func (q *queueWorkload) park(ctx context.Context, p *process, guard *core.Guard, kind, who string) error {
	m := q.next(kind, pick(q.r, q.keys...))
	call := core.Call{Key: m.key, Name: "parked: " + kind, ID: m.id, Encode: func() ([]byte, error) { return m.payload, nil }}
	err := guard.Do(ctx, call, func(ctx context.Context) error {
		m.fresh = true
		lease, _ := core.LeaseFrom(ctx)
		q.freshly(ctx, m.key, under(p, who, lease))
		return nil
	})
	var deferred *core.DeferredError
	if !errors.As(err, &deferred) {
		m.refused = errors.Is(err, delayqueue.ErrFull)
		return err
	}
	if m.fresh {
		q.w.violation(who, "%s ran, and is stored as %s", m.id, deferred.Ticket.ID)
	}
	m.ticket = deferred.Ticket.ID
	q.w.emit(who, "parked", m.key, m.id)
	q.ledger.stored(m, true, nil)
	return nil
}

// hold makes a call that waits while its key is held, or asks again and again.
func (q *queueWorkload) hold(ctx context.Context, p *process, who string, greedily bool) error {
	key, acquire := pick(q.r, q.keys...), p.locker.Acquire
	if greedily {
		if q.r.one(3) {
			return q.two(ctx, p, who, key)
		}
		acquire = p.locker.TryAcquire
	}
	lease, err := acquire(ctx, key)
	for greedily && errors.Is(err, core.ErrConflict) && ctx.Err() == nil {
		time.Sleep(q.r.between(0, 10*time.Millisecond))
		lease, err = acquire(ctx, key)
	}
	if err != nil {
		return err
	}
	q.freshly(lease.Context(), key, under(p, who, lease))
	release, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	return lease.Release(release)
}

// two asks for a key and one that nobody else wants, again and again, and works under both.
func (q *queueWorkload) two(ctx context.Context, p *process, who, key string) error {
	keys := []string{key, "of " + who}
	set, err := p.locker.TryAcquireAll(ctx, keys)
	for errors.Is(err, core.ErrConflict) && ctx.Err() == nil {
		time.Sleep(q.r.between(0, 10*time.Millisecond))
		set, err = p.locker.TryAcquireAll(ctx, keys)
	}
	if err != nil {
		return err
	}
	q.freshly(set.Context(), key, &stay{p: p, who: who, ctx: set.Context(), mode: core.ModeExclusive, fence: set.Fence(key)})
	release, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	return set.Release(release)
}

// freshly works under a lease that a fresh call was granted.
func (q *queueWorkload) freshly(ctx context.Context, key string, s *stay) {
	q.ledger.overtakes(key, s, q.auditor.last[key])
	q.auditor.enter(key, s)
	defer q.auditor.leave(key, s)
	q.stayFor(ctx, time.Second)
}

func (q *queueWorkload) stayFor(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(q.r.between(time.Millisecond, most)):
	case <-ctx.Done():
	}
}

// repair does what an operator does whose dead letters halt their keys: nothing runs, until they are redriven.
func (q *queueWorkload) repair(ctx context.Context, n *node, who string) error {
	if !q.halts {
		return nil
	}
	const most = 5 * time.Second
	q.w.disturb(most)
	if err := n.queue.Pause(ctx, most); err != nil {
		return err
	}
	time.Sleep(q.r.between(0, 3*time.Second))
	dead, _, err := n.queue.List(ctx, delayqueue.StateDead, "", 100)
	for _, entry := range dead {
		if m := q.ledger.named(entry.ID); m != nil && err == nil {
			err = q.redrive(ctx, n, m)
			q.w.emit(who, "redrives", m.key, m.id, " ", err)
		}
	}
	return errors.Join(err, n.queue.Resume(ctx))
}

// redrive puts a dead letter back, if it still is one.
func (q *queueWorkload) redrive(ctx context.Context, n *node, m *message) error {
	m.redriven++ // it may run again, even if the reply is lost
	starts := m.starts
	err := n.queue.Redrive(ctx, m.name(), 0)
	if errors.Is(err, delayqueue.ErrNotDead) || errors.Is(err, delayqueue.ErrNotFound) {
		return nil // somebody else did
	}
	m.leads = err == nil && q.halts && m.starts == starts
	return err
}

// ask asks for a message, or does something to it.
func (q *queueWorkload) ask(ctx context.Context, n *node, who, kind string, m *message) (err error) {
	before := m.redriven
	switch kind {
	case "cancel":
		began, first := time.Now(), !m.asked
		m.asked = true
		if err = n.queue.Cancel(ctx, m.name()); err == nil {
			if first { // what was cancelled can be again
				q.ledger.cancelled(who, m, began)
			}
			q.ledger.saw(m, delayqueue.StateCancelled, before)
		}
	case "redrive":
		if m.seen != delayqueue.StateDead {
			return nil
		}
		err = q.redrive(ctx, n, m)
	default:
		get := n.queue.Status
		if kind == "wait" {
			get = n.queue.Wait
		}
		var status delayqueue.Status
		began := time.Now()
		if status, err = get(ctx, m.name()); err == nil {
			q.ledger.saw(m, status.State, before)
		}
		if late := time.Since(later(began, m.doneAt)); m.done > 0 && m.redriven == 0 && late > 3*time.Second && q.w.quiet(m.doneAt) {
			q.w.violation(who, "%s of %s returns %s after it was done: %v", kind, m.id, late, err)
		}
	}
	q.w.emit(who, kind, m.key, m.id, " ", err)
	if errors.Is(err, delayqueue.ErrNotFound) {
		q.ledger.missing(who, m)
		return nil
	}
	return err
}

var errPlanned, errPanics = errors.New("it fails"), errors.New("it panics")

// handle runs a message, and ends in one of the ways that a handler can.
func (q *queueWorkload) handle(ctx context.Context, p *process, dm delayqueue.Message) (err error) {
	m := q.ledger.of(dm)
	if m == nil {
		return nil
	}
	who := fmt.Sprintf("%s:%s", p.name, m.id)
	n := q.nodes[p]
	n.runs++
	end := q.ledger.start(ctx, p, m, dm)
	if dm.Losses > 0 { // it may be its last attempt, which it has alone
		n.runs += n.slots
		defer func() { n.runs -= n.slots }()
	}
	defer func() {
		n.runs--
		end(err)
	}()
	if m.key != "" {
		lease, ok := core.LeaseFrom(ctx)
		if !ok || lease.Key() != m.key {
			q.w.violation(who, "it does not work under its key's lease")
			return nil
		}
		s := under(p, who, lease)
		s.again = true
		q.auditor.enter(m.key, s)
		defer q.auditor.leave(m.key, s)
	}
	if q.w.calm { // what has piled up is to be through in time
		return nil
	}
	most := pick(q.r, time.Millisecond, 100*time.Millisecond, 900*time.Millisecond)
	if q.r.one(16) { // longer than its claim
		most = 10 * time.Second
	}
	q.stayFor(ctx, most)
	if ctx.Err() != nil && q.r.one(2) { // it gives up
		return ctx.Err()
	}
	if q.w.calm || !q.fails {
		return nil
	}
	if q.halts && q.r.one(6) {
		return delayqueue.SkipRetry(errPlanned)
	}
	switch q.r.IntN(24) {
	case 0, 1, 2:
		return errPlanned
	case 3:
		return delayqueue.SkipRetry(errPlanned)
	case 4:
		return delayqueue.RetryLater(errPlanned, q.r.between(0, time.Second))
	case 5:
		return delayqueue.HandBack(errPlanned)
	case 6:
		return fmt.Errorf("%w: of another key", core.ErrConflict)
	case 7:
		err = errPanics
		panic(err)
	case 8:
		q.stayFor(context.Background(), 8*time.Second) // it hears nothing
	}
	if q.r.one(3) {
		m.result, m.told = q.w.quiet(time.Now()), true
		if err := delayqueue.SetResult(ctx, []byte(m.id)); err != nil {
			q.w.violation(who, "result: %v", err)
		}
	}
	return nil
}

// settle checks what must hold once there are no faults any more.
func (q *queueWorkload) settle() {
	alive := q.w.alive()
	last := alive[len(alive)-1]
	if !slices.ContainsFunc(alive, func(p *process) bool { return q.nodes[p].works }) { // they died
		as(last.group, q.nodes[last].start)
	}
	time.Sleep(2 * time.Minute)
	for _, p := range alive {
		if n := q.nodes[p].busy; n > 0 {
			q.w.violation(p.name, "%d calls still wait two minutes after the last fault", n)
		}
	}
	as(last.group, func() { q.account(q.nodes[last]) })
	q.w.stopAll()
	q.w.idle = 2 * time.Hour
	time.Sleep(q.w.idle)
	as(last.group, func() { q.retained(q.nodes[last]) })
}

// retained checks that dead letters are there as a whole, however long they have lain there, if there was room for all.
func (q *queueWorkload) retained(n *node) {
	for _, m := range q.ledger.all {
		if m.entry == nil || m.entry.State != delayqueue.StateDead || q.bytes > 0 {
			continue
		}
		if payload, err := n.queue.Payload(context.Background(), m.name()); err != nil || !bytes.Equal(payload, m.payload) {
			q.w.violation("-", "the payload of %s, a dead letter, is %.20q: %v", m.id, payload, err)
		}
	}
}

func (q *queueWorkload) stop(ctx context.Context, p *process) error {
	return errors.Join(q.nodes[p].worker.Stop(ctx), p.locker.Shutdown(ctx))
}

// account looks at the end of each message. A key that a dead letter halts is freed first.
func (q *queueWorkload) account(n *node) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for q.halts {
		stats, err := n.queue.Stats(ctx)
		if err != nil || stats.Halted == 0 {
			break
		}
		if _, err := n.queue.PurgeAll(ctx, delayqueue.Filter{}); err != nil {
			q.w.violation("-", "purge: %v", err)
			break
		}
		q.ledger.purged = true
		time.Sleep(30 * time.Second)
	}
	dead := int64(0)
	for _, m := range q.ledger.all {
		entry, err := n.queue.Peek(ctx, m.name())
		if errors.Is(err, delayqueue.ErrNotFound) {
			q.ledger.missing("-", m)
			continue
		}
		if err != nil {
			q.w.violation("-", "%s: %v", m.id, err)
			continue
		}
		q.ledger.ended(m, entry)
		if (m.result || !m.told) && entry.State == delayqueue.StateDone && m.redriven == 0 && q.bytes == 0 {
			result, err := n.queue.Result(ctx, m.name())
			if m.result && (err != nil || string(result) != m.id) || !m.told && !errors.Is(err, delayqueue.ErrNotFound) {
				q.w.violation("-", "the result of %s is %q, %v", m.id, result, err)
			}
		}
		if entry.State == delayqueue.StateDead {
			dead++
		}
	}
	q.ledger.order()
	for _, key := range q.keys { // nothing is parked: none is kept for it
		lease, err := q.w.alive()[0].locker.TryAcquire(ctx, key)
		if err != nil {
			q.w.violation("-", "%s is not free in the end: %v", key, err)
			continue
		}
		_ = lease.Release(ctx)
	}
	stats, err := n.queue.Stats(ctx)
	if err != nil || stats.Queued != 0 || stats.Running != 0 || stats.Dead > dead || stats.Dead < dead && q.bytes == 0 {
		q.w.violation("-", "%d queued, %d running, %d dead of %d in the end: %v", stats.Queued, stats.Running, stats.Dead, dead, err)
	}
}
