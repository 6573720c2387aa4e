package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	pollUnheard = 500 * time.Millisecond // between the claims of an idle worker while it has no subscription
	// A busy worker checks this often for messages of dead workers.
	pollBusy     = time.Second
	claimTimeout = time.Second // for how long free slots wait for the reply
	minPause     = time.Millisecond
	outageBefore = 50 * time.Millisecond // backoff while Redis does not answer
	outageMost   = 5 * time.Second
	movingMost   = 250 * time.Millisecond // while Redis answers that a slot is being moved
)

// fetcher fetches the messages of one partition until its Worker is stopped: wait for free slots →
// claim as many messages → run them. It never claims more than there are free slots: what is
// claimed too early wastes its lease and keeps other workers from it. While handlers are quick
// there are more slots than messages that run.
type fetcher struct {
	*Worker
	partition *store.Partition
	wake      chan struct{}      // holds one: claim now
	sooner    chan time.Duration // holds one: claim after that
	freed     chan string        // its keys that may be free
	pending   []string           // those that the next claim looks at
	moreSlots chan struct{}      // holds one: more may be claimed than before
	timer     *time.Timer
	retired   atomic.Bool // the partition is not served any more
	running   atomic.Bool
	served    bool      // it has a heartbeat, until the Worker ends
	drains    sync.Once // wakes keys once nothing is claimed any more
}

func (w *fetcher) run() {
	own, _ := goroutine()
	w.fetching.Store(own, nil)
	// The claims of a fetcher are numbered: one that reaches Redis after a later one claims nothing.
	session, number, token := ident.Random(8), 0, ""
	failures, unanswered := 0, 0 // in a row
	defer func() {
		if failures > 0 && token != "" {
			w.handBackClaim(token)
		}
	}()
	defer w.running.Store(false)
	for !w.isStopping() && !w.retired.Load() {
		n := 0
		if failures == 0 { // else no slot waits for the reply: there are other partitions
			n = w.takeSlots()
		}
		select { // the claim sees what was announced before it
		case <-w.wake:
		default:
		}
		w.takeFreed()
		yields := len(w.pending) > 0 && w.judge.handsBack.Load() // the heads are due for all
		if w.paused.Load() || yields {
			w.slots.free(n)
			if n = 0; len(w.pending) == 0 {
				w.pause(pollBusy, true)
				continue
			}
		}
		if token == "" {
			number++
			token = fmt.Sprintf("%s.%d", session, number)
		}
		sent := time.Now()
		want := n
		b, n, err := w.ask(token, n)
		if err != nil {
			w.slots.free(n)
			failures++
			w.log.Warn("delayqueue: claim failed", slog.Any("error", err), slog.Int("failures", failures))
			// The token stays: if only the reply was lost, the next claim returns the same messages.
			unanswered++
			pause := backoff.Exponential(unanswered, outageBefore, outageMost)
			if store.IsMoving(err) {
				unanswered = 0
				pause = backoff.Exponential(failures, outageBefore, movingMost)
			}
			w.pause(backoff.Spread(pause), false)
			continue
		}
		took := time.Since(sent)
		failures, unanswered = 0, 0
		w.noteClaim(b)
		w.beginAll(b, token, sent, n)
		if len(b.Messages) > 0 || b.Spent {
			token = "" // not after an empty reply: if a copy of that claim reaches Redis late, the next claim returns its messages
		}
		if n > 0 && len(b.Messages) < want {
			w.idle(b.Wait, took)
		} else if yields {
			w.pause(handBackYield, false)
		}
	}
}

// noteClaim deals with what a claim's reply says besides its messages.
func (w *fetcher) noteClaim(b store.Batch) {
	w.claimed.Store(time.Now().UnixNano())
	w.reportReaped(b)
	for _, key := range b.Emptied {
		w.waker.reconsider(key)
	}
	w.looked(b.Freed)
}

// idle waits until a message is due, after a claim that took all there were.
func (w *fetcher) idle(due, took time.Duration) {
	floor := pollUnheard
	if w.wakeups.Up() {
		floor = min(pollFloor, w.lease/3)
	}
	w.pause(max(min(due, floor), minPause), true)
	if w.judge.handsBack.Load() {
		w.pause(min(max(handBackYield, 2*took), handBackYieldMost), false)
	}
}

// An idle Worker whose last message was handed back waits this long before its next claim, or twice as long as its claim took, if that is
// longer, so that other Workers get the message first. With 2 ms, the one process of ten that could run the messages ran them up to 30 s later.
const handBackYield, handBackYieldMost = 8 * time.Millisecond, 250 * time.Millisecond

// ask claims up to n messages for the n slots that were taken, and returns how many of the slots
// are left: after claimTimeout they are freed, for the other partitions, and the claim waits for
// its reply without them.
func (w *fetcher) ask(token string, n int) (b store.Batch, left int, err error) {
	if n == 0 {
		token = "" // claim nothing, nor what an earlier call claimed
	}
	var held atomic.Int64
	held.Store(int64(n))
	timer := time.AfterFunc(claimTimeout, func() { w.slots.free(int(held.Swap(0))) })
	defer timer.Stop()
	// Not cancelled by Stop: messages whose claim is not known here would wait for its end.
	b, err = w.partition.Claim(w.ctx, token, w.lease, n, w.pending...)
	return b, int(held.Swap(0)), err
}

// beginAll runs the messages of a claim that was sent at sent, and frees the slots that are not
// needed.
func (w *fetcher) beginAll(b store.Batch, token string, sent time.Time, slots int) {
	claims := make([]*claim, len(b.Messages))
	for i, m := range b.Messages { // all of them first: the heartbeat extends those that wait for a slot
		claims[i] = w.claims.add(w.ctx, w.queue, w.partition, m, token, trust.Until(sent, w.lease))
		claims[i].startBy, claims[i].whilePaused = sent.Add(m.Left), w.paused.Load()
	}
	used := 0
	for _, c := range claims {
		// An earlier claim, whose reply was lost, had more than the slots; or this one was slow.
		if used++; used <= slots || w.slots.take() {
			w.begin(c)
		} else {
			w.handlers.Go(func() { w.settle(c, *w.notRun(errNoSlot)) })
		}
	}
	w.slots.free(max(0, slots-used))
}

// handBackClaim settles the messages of a claim whose reply was lost before Stop.
func (w *fetcher) handBackClaim(token string) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	sent := time.Now()
	b, err := w.partition.Claim(ctx, token, w.lease, 0)
	if err != nil {
		return
	}
	for _, m := range b.Messages {
		c := w.claims.add(w.ctx, w.queue, w.partition, m, token, trust.Until(sent, w.lease))
		w.handlers.Go(func() { w.process(c) }) // which is stopping
	}
}

// takeSlots waits for a free slot, and takes as many free ones as a claim may fill. While none is
// free it returns 0 each second, and when a key may be free: a claim also gives back messages of dead workers.
func (w *fetcher) takeSlots() int {
	w.timer.Reset(pollBusy)
	for {
		n := 1
		select {
		case w.slots.forClaims() <- struct{}{}:
		case w.slots.aheadForClaims() <- struct{}{}:
		case <-w.moreSlots:
			continue
		case key := <-w.freed:
			w.pending = append(w.pending, key)
			n = 0
		case <-w.timer.C:
			return 0
		case <-w.stopping:
			return 0
		}
		n += w.slots.takeFree(store.BatchItems - n)
		// A message that is to run alone enters alone, and then sees that no slots are taken: it sees these, or is seen here.
		if len(w.slots.alone) == 0 {
			return n
		}
		w.slots.free(n)
		if len(w.pending) > 0 {
			return 0
		}
	}
}

// pause waits for d, for Stop, and, if wakeable, until it is woken.
func (w *fetcher) pause(d time.Duration, wakeable bool) {
	wake, sooner, freed := w.wake, w.sooner, w.freed
	if !wakeable {
		wake, sooner, freed = nil, nil, nil
	}
	for until := time.Now().Add(d); ; {
		w.timer.Reset(time.Until(until))
		select {
		case in := <-sooner:
			if at := time.Now().Add(in); at.Before(until) {
				until = at
			}
			continue
		case key := <-freed:
			w.pending = append(w.pending, key)
		case <-w.timer.C:
		case <-wake:
		case <-w.stopping:
		}
		return
	}
}

func (w *fetcher) reportReaped(b store.Batch) {
	if b.Redelivered == 0 && b.Expired == 0 {
		return
	}
	level := slog.LevelInfo
	if b.Redelivered > 0 {
		level = slog.LevelWarn
	}
	w.log.LogAttrs(context.Background(), level, "delayqueue: reaped", slog.Int64("redelivered", b.Redelivered), slog.Int64("expired", b.Expired))
	observe(w.log, func() {
		w.observer.OnReaped(w.ctx, Reaped{Queue: w.queue.name, Redelivered: b.Redelivered, Expired: b.Expired})
	})
}

// fetcherOf returns the fetcher of a partition, and makes it if there is none.
func (w *Worker) fetcherOf(p *store.Partition) *fetcher {
	find := func() *fetcher {
		all := *w.fetchers.Load()
		if i := slices.IndexFunc(all, func(c *fetcher) bool { return c.partition == p }); i >= 0 {
			return all[i]
		}
		return nil
	}
	if c := find(); c != nil {
		return c
	}
	w.fetchersMu.Lock()
	defer w.fetchersMu.Unlock()
	c := find()
	if c == nil {
		c = &fetcher{
			Worker: w, partition: p, timer: time.NewTimer(time.Hour),
			wake: make(chan struct{}, 1), sooner: make(chan time.Duration, 1), freed: make(chan string, announcements), moreSlots: make(chan struct{}, 1),
		}
		p.Expect((1 + aheadMost) * w.concurrency)
		all := append(slices.Clip(*w.fetchers.Load()), c)
		w.fetchers.Store(&all)
	}
	return c
}

// wakeSoon wakes the fetcher.
func (w *fetcher) wakeSoon() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wakeIn wakes the fetcher after d. It is called by one goroutine at a time.
func (w *fetcher) wakeIn(d time.Duration) {
	for {
		select {
		case w.sooner <- d:
			return
		case earlier := <-w.sooner:
			d = min(d, earlier)
		}
	}
}

// begin runs a claimed message. The caller has taken the slot that it needs.
func (w *Worker) begin(c *claim) {
	w.handlers.Go(func() {
		defer w.slots.free(1)
		w.process(c)
	})
}
