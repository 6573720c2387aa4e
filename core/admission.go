package core

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

// A grant that is not exclusive lets in more than the call that it is for: those that stand in
// line with it are admitted too, all in one round trip, past calls of other processes that
// wait (readers) or if none does (permits). Who joins the line later asks again: so at most two
// batches of readers enter before a writer that waits.

// admission is a question whether Redis admits calls of a line beside their leader.
type admission struct {
	line       *line
	leader     string // the entry that was granted the key
	sent       time.Time
	companions []companion
}

// companion is a call as it is to be admitted.
type companion struct {
	call  *waiter
	entry string
	lease time.Duration
	what  string
}

const (
	// maxCompanions bounds how long a script keeps Redis. More are admitted by several.
	maxCompanions = 128
	// admissionPatience is how long a line does not ask by itself while an admission is under way.
	admissionPatience = time.Second
)

// companions returns the admissions of the calls in line, of which one, leader, was granted the
// key just now, with room for more or not; any number of readers has room. They are to be sent.
// Called with mu held.
func (w *waiters) companions(ln *line, leader string, room bool) (all []*admission) {
	if ln.limit == exclusive || ln.first == nil {
		return nil
	}
	if ln.limit != shared && !room || !w.locker.store.queues() {
		ln.inform(ln.joined)
		ln.first.poke() // may hold it too
		return nil
	}
	now, left := time.Now(), ln.n
	if ln.limit != shared {
		left = min(left, ln.limit-1)
	}
	ln.admitBy = now.Add(admissionPatience)
	ln.first.poke() // to ask by then
	for c := ln.first; left > 0; c, left = c.next, left-1 {
		if len(all) == 0 || len(all[len(all)-1].companions) == maxCompanions {
			all = append(all, &admission{line: ln, leader: leader, sent: now})
			ln.admitting++
		}
		a := all[len(all)-1]
		c.companion = newEntry(ln.limit, w.locker.id)
		a.companions = append(a.companions, companion{c, c.companion, c.opts.firstLease(), c.opts.what})
	}
	return all
}

// admit sends admissions. Called without mu: their answers may come at once.
func (w *waiters) admit(all []*admission) {
	for _, a := range all {
		record := recordName(w.locker.prefix, a.line.key)
		_ = w.locker.store.admit(record, a.leader, a.companions, func(fences []int64, err error) { w.admitted(a, fences, err) })
	}
}

// admitted takes the answer to an admission. What was granted to a call that is not in line any
// more is cancelled, and what may have been granted too.
func (w *waiters) admitted(a *admission, fences []int64, err error) {
	var unused []string
	w.mu.Lock()
	defer func() {
		w.mu.Unlock()
		for _, entry := range unused {
			w.locker.cancel(releaseRequest{record: recordName(w.locker.prefix, a.line.key), entry: entry}, w.locker.firstLease)
		}
	}()
	ln, now := a.line, time.Now()
	first, refused := ln.first, uint64(0)
	for i, m := range a.companions {
		inLine := m.call.companion == m.entry
		if inLine {
			m.call.companion = ""
		}
		switch {
		case err != nil:
			if mayHaveRun(err) {
				w.drop(ln.key, m.entry)
			}
		case fences[i] == 0:
			if inLine {
				refused = max(refused, m.call.number)
			}
		case !inLine || !w.enter(m, fences[i], trust.Until(a.sent, m.lease), now):
			unused = append(unused, m.entry)
		}
	}
	ln.admitting--
	if err != nil {
		ln.unanswered(unavailable("acquire", ln.key, err))
	} else {
		ln.replied()
		ln.inform(refused)
	}
	switch {
	case ln.first == nil && w.lines[ln.lineKey] == ln:
		w.close(ln)
	case ln.first != nil:
		if ln.first != first {
			w.withdrawEntry(ln)
		}
		ln.first.poke()
	}
}

// enter passes the hold of an admitted call to it, unless the grant came too late. Called with mu
// held.
func (w *waiters) enter(m companion, fence int64, deadline, now time.Time) bool {
	c := m.call
	if trust.Passed(deadline, now) {
		return false
	}
	h := w.locker.newHold(recordName(w.locker.prefix, c.line.key), m.entry, c.line.limit, fence, deadline, c.opts)
	if !w.locker.renewals.add(h) {
		return false
	}
	w.remove(c)
	c.hand(h)
	return true
}

// admit implements store.
func (d *deployment) admit(record, leader string, companions []companion, done func(fences []int64, err error)) bool {
	cmd := d.command(context.Background(), admitScript, false, record, leader)
	for i := range companions {
		m := &companions[i]
		cmd.args = append(cmd.args, &m.entry, m.lease.Milliseconds(), &m.what)
	}
	cmd.tell = func(r result) {
		fences, err := []int64(nil), r.err
		if err == nil {
			fences, err = integers(r.val, len(companions))
		}
		done(fences, err)
	}
	return d.batcher(record).submit(cmd)
}
