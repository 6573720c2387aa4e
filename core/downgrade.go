package core

import (
	"cmp"
	"context"
	"time"
)

// An exclusive hold has another entry in Redis once it was downgraded. Between the
// request and the answer it may have either.
const (
	formGranted int32 = iota
	formEither
	formShared
)

// holder is the hold's entry in Redis, as far as we know.
func (h *hold) holder() string { return string(h.appendHolder(make([]byte, 0, entryRoom))) }

func (h *hold) appendHolder(b []byte) []byte {
	limit := int(h.limit)
	if h.form.Load() == formShared {
		limit = shared
	}
	return appendEntry(b, limit, *h.owner, h.secret)
}

// entry is the hold's entry with a limit: another than it was granted with if it was
// downgraded.
func (h *hold) entry(limit int) string { return formatEntry(limit, *h.owner, h.secret) }

// mode is how many may hold the key together with the hold, at worst.
func (h *hold) mode() int {
	if h.form.Load() != formGranted {
		return shared
	}
	return int(h.limit)
}

// renamed tells whether Redis, which does not know the entry that it was asked for,
// may know the hold by another one: holder, from now on. A downgrade that is still
// under way finds nothing to do then.
func (h *hold) renamed(asked string) bool {
	h.form.CompareAndSwap(formEither, formShared)
	return asked != h.holder()
}

// downgrade asks Redis to make an exclusive hold a shared one.
func (d *deployment) downgrade(ctx context.Context, h *hold) (owned bool, err error) {
	cmd := d.command(ctx, downgradeScript, false, h.record, h.entry(exclusive), h.entry(shared), h.lastFence())
	cmd.key = h.key()
	r, _, err := d.ask(ctx, "downgrade", cmd, max(h.ttl, replyTimeout), nil)
	if err != nil {
		return false, err
	}
	d.recycle(cmd)
	n, shaped := r.val.(int64)
	if !shaped {
		return false, unavailable("downgrade", h.key(), cmp.Or(r.err, errShape))
	}
	return n == 1, nil
}

// withdraw has the line of an exclusive hold ask Redis for itself: the hold will not
// be passed on.
func (w *waiters) withdraw(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[lineKey{h.key(), int(h.limit)}]
	if ln == nil || ln.held != h {
		return
	}
	ln.held = nil
	if ln.first == nil {
		w.close(ln)
		return
	}
	ln.askAt = time.Time{}
	ln.first.poke()
}
