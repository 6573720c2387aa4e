package delayqueue

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// The delay of what is handed back doubles between these.
	handBackFirst, handBackMost = time.Second, 30 * time.Second
	handBackEach                = time.Millisecond // up to this is added for each message that is known
	// Messages that are handed back without a lock are sent to Redis together, after this time at the latest.
	handBackWait = 250 * time.Millisecond
	// An idle Worker whose last message was handed back waits this long before its next claim, or twice as long as its claim took, if that is
	// longer, so that other Workers get the message first. With 2 ms, the one process of ten that could run the messages ran them up to 30 s later.
	handBackYield, handBackYieldMost = 8 * time.Millisecond, 250 * time.Millisecond
	// The handler is called again for one of the messages of a name that it has handed back: that long after the last call, or sooner for
	// another one if the one that was to be it has not reached the handler, since its key is held.
	askAgain, askAnother = 30 * time.Second, 300 * time.Millisecond
	maxHandedBack        = 65_536 // messages that are remembered
)

// handedBack is the set of messages that the handler has handed back: when they return they cost neither a lock nor a call. From time to time
// the handler is called for one of each name, since a reload may have changed what it can run.
type handedBack struct {
	mu    sync.Mutex
	names map[string]*handedBackName
	count int

	last atomic.Bool // the Worker's last message was one
}

type handedBackName struct {
	ids   map[string]error
	asked time.Time
}

// add stores why the handler handed a message back.
func (h *handedBack) add(m Message, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil || h.count >= maxHandedBack {
		h.names, h.count = map[string]*handedBackName{}, 0
	}
	n := h.names[m.Name]
	if n == nil {
		n = &handedBackName{ids: map[string]error{}, asked: time.Now()}
		h.names[m.Name] = n
	}
	if n.ids[m.ID] == nil {
		h.count++
	}
	n.ids[m.ID] = why
	h.last.Store(true)
}

// asks notes that the handler is about to be called for a message.
func (h *handedBack) asks(m Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.names[m.Name]; n != nil && n.ids[m.ID] != nil {
		n.asked = time.Now()
	}
}

// why returns why a message was handed back. It is nil if it was not, or if the handler is to be called again.
func (h *handedBack) why(m Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.names[m.Name]
	if n == nil || n.ids[m.ID] == nil {
		return nil
	}
	if now := time.Now(); now.Sub(n.asked) >= askAgain {
		n.asked = now.Add(askAnother - askAgain)
		return nil
	}
	return n.ids[m.ID]
}

// has reports whether the handler has handed back a message of the name, and has run none of these since.
func (h *handedBack) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names[name] != nil
}

// known is how many messages are in the set.
func (h *handedBack) known() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// ran removes all messages of a name if the handler has run one of them.
func (h *handedBack) ran(m Message) {
	h.last.Store(false)
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.names[m.Name]; n != nil && n.ids[m.ID] != nil {
		h.count -= len(n.ids)
		delete(h.names, m.Name)
	}
}

// returns are claims that are handed back together.
type returns struct {
	batch []*settling
	full  chan struct{} // closed when there is no room for more
}

// handBack hands a claimed message back, soon and without a lock, if it is known that this Worker
// cannot run it. It reports false if that is not known. It is asked once about each claim: a second time it would find that the handler is
// about to be asked, and hand the message back.
func (w *fetcher) handBack(c *claim) bool {
	why := cmp.Or(w.handedBack.why(c.message), w.queue.sealer.cannotOpen(c.message))
	if why == nil {
		why = w.checked(c.message)
	}
	if why == nil || w.isStopping() {
		return false
	}
	w.handedBack.last.Store(true)
	w.returnsMu.Lock()
	defer w.returnsMu.Unlock()
	if w.returns == nil {
		r := &returns{full: make(chan struct{})}
		w.returns = r
		w.handlers.Go(func() { w.sendReturns(r) })
	}
	w.returns.batch = append(w.returns.batch, c.end(w.returnedOutcome(c, why), w.lease))
	if len(w.returns.batch) == batchItems {
		close(w.returns.full)
		w.returns = nil
	}
	return true
}

// checked returns why WithCheck's function wants a message handed back, or nil.
func (w *Worker) checked(m Message) (err error) {
	if w.check == nil || m.damage != "" || !w.handedBack.has(m.Name) {
		return nil
	}
	if m.Trace, m.Payload, err = w.queue.open(m.sealedOf(), m.Payload); err != nil {
		return nil // its turn tells
	}
	if aside(func() { err = w.check(m) }) != nil {
		return nil // its turn tells
	}
	if err = safeError(err); err != nil {
		w.handedBack.add(m, err)
	}
	return err
}

// sendReturns hands messages back when the batch is full, or after handBackWait.
func (w *fetcher) sendReturns(r *returns) {
	timer := time.NewTimer(handBackWait)
	defer timer.Stop()
	select {
	case <-r.full:
	case <-timer.C:
	case <-w.stopping:
	}
	w.returnsMu.Lock()
	if w.returns == r {
		w.returns = nil
	}
	w.returnsMu.Unlock()
	for _, s := range r.batch {
		w.claims.settle(s.claim)
	}
	go w.partition.settle(r.batch)
	answered := w.await(r.batch[0])
	for _, s := range r.batch {
		v := s.outcome
		switch {
		case !answered:
			v.kind, v.err = OutcomeLate, errors.Join(ErrClaimLost, ErrStopped, v.err)
		case s.failed():
			w.handlers.Go(func() { w.settle(s.claim, v) }) // which tries again
			continue
		default:
			w.settled(s, &v)
		}
		w.conclude(s.claim, v)
		// At first its key may be reserved, by itself or by those queued after it. A call that is parked later ends its own
		// reservation, as it finds nothing that could run.
		if m := s.claim.message; m.Key != "" && m.handed == 0 && (m.parked || m.queuedAfter) {
			w.reconsider(m.Key)
		}
	}
}

// failed waits for a settlement, and reports whether it failed.
func (s *settling) failed() bool {
	<-s.done
	return s.err != nil
}
