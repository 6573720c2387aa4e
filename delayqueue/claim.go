package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// An idle worker looks at the queue this often, should an announcement be lost, and
	// three times in a claim lease, so that it knows of every claim before that ends;
	// unheard announcements are all lost while it is not subscribed.
	pollFloor   = 10 * time.Second
	pollUnheard = 500 * time.Millisecond
	// A busy worker looks this often for what dead ones have left.
	pollBusy     = time.Second
	claimBatch   = 64          // messages
	claimBytes   = 1 << 20     // of payload
	claimTimeout = time.Second // for which free slots wait for the answer
	minPause     = time.Millisecond
	outageBefore = 50 * time.Millisecond // backoff while Redis does not answer
	outageMost   = 5 * time.Second
	movingMost   = 250 * time.Millisecond // while Redis answers that a slot is being moved
)

// claimer claims what is due in one partition for as long as its Worker is not
// stopped, never more than there are free slots: what is claimed too early burns its
// lease and keeps other workers from it. While handlers are quick there are more slots
// than messages that run.
type claimer struct {
	*Worker
	partition *partition
	wake      chan struct{} // holds one: look at the partition
	freed     chan string   // its keys that were announced to be free
	lookAgain chan struct{} // holds one: more may be claimed than before
	timer     *time.Timer
	retired   atomic.Bool // the partition is not served any more
	running   atomic.Bool
	served    bool // it has a heartbeat and a waker, for good
	// The last claim's messages were all handed back without a lock, so the next brings more
	// than there are slots.
	foreignOnly bool

	returnsMu sync.Mutex
	returns   *returns // those that are handed back next, or nil
}

func (w *claimer) run() {
	// The claims of a claimer are numbered: one that comes to Redis after a later one takes nothing.
	session, number, token := ident.Random(8), 0, ""
	failures, unanswered := 0, 0 // in a row
	defer func() {
		if failures > 0 && token != "" {
			w.giveBack(token)
		}
	}()
	defer w.running.Store(false)
	for !w.isStopping() && !w.retired.Load() {
		n := 0
		if failures == 0 { // else no slot waits for the answer: there are other partitions
			n = w.takeSlots()
		}
		select { // what was announced before the claim is seen by it
		case <-w.wake:
		default:
		}
		if w.paused.Load() {
			w.freeSlots(n)
			w.pause(pollBusy, true)
			continue
		}
		if token == "" {
			number++
			token = fmt.Sprintf("%s.%d", session, number)
		}
		sent := time.Now()
		want := n
		if w.foreignOnly && n > 0 {
			want = claimBatch
		}
		b, n, err := w.ask(token, n, want)
		if err != nil {
			w.freeSlots(n)
			failures++
			w.log.Warn("delayqueue: claim failed", slog.Any("error", err), slog.Int("failures", failures))
			// The token stays: if only the reply was lost, the next claim brings
			// the same messages.
			unanswered++
			pause := backoff.Exponential(unanswered, outageBefore, outageMost)
			if isMoving(err) {
				unanswered = 0
				pause = backoff.Exponential(failures, outageBefore, movingMost)
			}
			w.pause(backoff.Spread(pause), false)
			continue
		}
		took := time.Since(sent)
		failures, unanswered = 0, 0
		w.claimed.Store(time.Now().UnixNano())
		if m := w.queue.manifest.Load(); m != nil && w.partition.closed.Load() != nil && m.current().number == w.partition.generation {
			w.change()
		}
		w.report(b)
		for _, key := range b.emptied {
			w.reconsider(key)
		}
		w.beginAll(b, token, sent, n)
		if len(b.messages) > 0 || b.spent {
			token = "" // an empty answer leaves it: should the same call come to Redis late, the next one finds what it took
		}
		if n > 0 && len(b.messages) < want {
			floor := pollUnheard
			if w.wakeups.Up() {
				floor = min(pollFloor, w.lease/3)
			}
			w.pause(max(min(b.wait, floor), minPause), true)
			if w.foreign.last.Load() {
				w.pause(min(max(handBackYield, 2*took), handBackYieldMost), false)
			}
		}
	}
}

// ask claims up to want messages for the n slots that were taken, and answers how many of the
// slots are left: after a while they are freed, for the other partitions, and the answer
// is waited for without them.
func (w *claimer) ask(token string, n, want int) (b batch, left int, err error) {
	if n == 0 {
		token = "" // nothing is to be taken, nor what an earlier call took
	}
	var held atomic.Int64
	held.Store(int64(n))
	timer := time.AfterFunc(claimTimeout, func() { w.freeSlots(int(held.Swap(0))) })
	defer timer.Stop()
	// Not cancelled by Stop: messages whose claim nobody heard of would wait for its end.
	b, err = w.partition.claim(w.ctx, token, w.lease, want)
	return b, int(held.Swap(0)), err
}

// beginAll runs what was claimed by a command sent at sent, and frees the slots that are
// not needed.
func (w *claimer) beginAll(b batch, token string, sent time.Time, slots int) {
	claims := make([]*claim, len(b.messages))
	for i, m := range b.messages { // first all: the heartbeat keeps those that wait for a slot
		claims[i] = w.claims.add(w.ctx, w.partition, m, token, trust.Until(sent, w.lease))
		claims[i].startBy = sent.Add(b.left[i])
	}
	used := 0
	for _, c := range claims {
		if w.handBack(c) {
			continue
		}
		// An earlier claim, whose reply was lost, had more than the slots; or this one was slow.
		if used++; used <= slots || !w.foreignOnly && w.takeSlot() {
			w.begin(c)
		} else { // with foreignOnly it was to be handed back too
			w.handlers.Go(func() { w.settle(c, w.noPlace()) })
		}
	}
	w.freeSlots(max(0, slots-used))
	if len(claims) > 0 {
		w.foreignOnly = used == 0
	}
}

// giveBack settles what a claim may have taken whose reply was lost before Stop.
func (w *claimer) giveBack(token string) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	sent := time.Now()
	b, err := w.partition.claim(ctx, token, w.lease, 0)
	if err != nil {
		return
	}
	for _, m := range b.messages {
		c := w.claims.add(w.ctx, w.partition, m, token, trust.Until(sent, w.lease))
		w.handlers.Go(func() { w.process(c) }) // which is stopping
	}
}

// takeSlots waits for a free slot, and takes what others are free, as many as a claim
// may bring. While none is free it returns 0 each second: a claim also gives back what
// dead workers held.
func (w *claimer) takeSlots() (n int) {
	w.timer.Reset(pollBusy)
	for n == 0 {
		select {
		case w.freeForClaims() <- struct{}{}:
			n = 1
		case w.slotsAhead() <- struct{}{}:
			n = 1
		case <-w.lookAgain:
		case <-w.timer.C:
			return 0
		case <-w.stopping:
			return 0
		}
	}
	for slots, ahead := w.freeForClaims(), w.slotsAhead(); n < claimBatch; n++ {
		select {
		case slots <- struct{}{}:
			continue
		default:
		}
		select {
		case ahead <- struct{}{}:
		default:
			return n
		}
	}
	return n
}

// takeSlot takes a slot, or one ahead, for a message that is claimed already. It reports false if there is none, or if
// a message runs alone.
func (w *Worker) takeSlot() bool {
	if len(w.alone) > 0 {
		return false
	}
	select {
	case w.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case w.ahead <- struct{}{}:
		return true
	default:
		return false
	}
}

// freeForClaims is w.slots, nil while a message runs alone.
func (w *Worker) freeForClaims() chan struct{} {
	if len(w.alone) > 0 {
		return nil
	}
	return w.slots
}

// slotsAhead are those beside w.slots, nil if nothing is to be claimed ahead.
func (w *Worker) slotsAhead() chan struct{} {
	if w.claimsAhead() {
		return w.ahead
	}
	return nil
}

func (w *Worker) freeSlots(n int) {
	for range n {
		select {
		case <-w.ahead:
		default:
			<-w.slots
		}
	}
}

// pause waits for d, for Stop, and if it may be woken for an announcement.
func (w *claimer) pause(d time.Duration, wakeable bool) {
	wake := w.wake
	if !wakeable {
		wake = nil
	}
	w.timer.Reset(d)
	select {
	case <-w.timer.C:
	case <-wake:
	case <-w.stopping:
	}
}

func (w *Worker) report(b batch) {
	if b.redelivered == 0 && b.expired == 0 {
		return
	}
	level := slog.LevelInfo
	if b.redelivered > 0 {
		level = slog.LevelWarn
	}
	w.log.LogAttrs(context.Background(), level, "delayqueue: tidied up", slog.Int64("redelivered", b.redelivered), slog.Int64("expired", b.expired))
	observe(w.log, func() {
		w.observer.OnSwept(w.ctx, Swept{Queue: w.queue.name, Redelivered: b.redelivered, Expired: b.expired})
	})
}

// claimerOf returns the claimer of a partition.
func (w *Worker) claimerOf(p *partition) *claimer {
	find := func() *claimer {
		all := *w.claimers.Load()
		if i := slices.IndexFunc(all, func(c *claimer) bool { return c.partition == p }); i >= 0 {
			return all[i]
		}
		return nil
	}
	if c := find(); c != nil {
		return c
	}
	w.claimersMu.Lock()
	defer w.claimersMu.Unlock()
	c := find()
	if c == nil {
		c = &claimer{
			Worker: w, partition: p, timer: time.NewTimer(time.Hour),
			wake: make(chan struct{}, 1), freed: make(chan string, announcements), lookAgain: make(chan struct{}, 1),
		}
		p.workers.Store(max(p.workers.Load(), int64(w.concurrency)))
		all := append(slices.Clip(*w.claimers.Load()), c)
		w.claimers.Store(&all)
	}
	return c
}

// lookSoon has the partition looked at soon.
func (w *claimer) lookSoon() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// begin runs a claimed message. The caller has taken the slot that it needs.
func (w *Worker) begin(c *claim) {
	w.handlers.Go(func() {
		defer w.freeSlots(1)
		w.process(c)
	})
}
