package waitqueue_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redis has the key.
type redis struct {
	*world
	holders map[string]*holder
	fifo    []string
	fence   int64
	rivals  int
	back    time.Duration // by how much its clock was set back
}

type holder struct {
	ends  time.Time
	fence int64
}

type answer struct {
	fence     int64
	owned     bool // the key was held
	wanted    bool
	room      bool
	remaining time.Duration
	server    int64
	latest    int64
	place     int
	length    int
}

func own(token string) bool { return strings.Contains(token, ":own.") }

func limitOf(token string) int {
	digits, _, _ := strings.Cut(token, ":")
	n, _ := strconv.Atoi(digits)
	return n
}

func (r *redis) fits(limit int) bool {
	for token := range r.holders {
		if limitOf(token) == 1 {
			return false
		}
	}
	return len(r.holders) == 0 || limit != 1 && (limit == 0 || len(r.holders) < limit)
}

// clock is the time by its clock. Leases end as if that were not set.
func (r *redis) clock() time.Time { return r.now.Add(-r.back) }

func (r *redis) grant(token string, lease time.Duration) int64 {
	r.fence = max(r.fence+1, r.clock().UnixMicro())
	r.holders[token] = &holder{r.now.Add(lease), r.fence}
	return r.fence
}

func (r *redis) sweep() {
	for token, h := range r.holders {
		if !h.ends.After(r.now) {
			delete(r.holders, token)
		}
	}
}

// serve grants the key to those at the head who fit, up to me.
func (r *redis) serve(me string) bool {
	for len(r.fifo) > 0 && r.fits(limitOf(r.fifo[0])) {
		token := r.fifo[0]
		r.fifo = r.fifo[1:]
		if token == me {
			return true
		}
		fence := r.grant(token, claim)
		if own(token) {
			r.grantMessage(token, fence, r.clock().Add(claim).UnixMilli(), len(r.fifo) > 0, r.room(token))
		} else {
			r.model.seen = fence
			r.after(r.work(), func() { r.release(token, "", false) })
		}
	}
	return false
}

// work is how long a rival holds the key.
func (r *redis) work() time.Duration {
	return time.Duration([]int{0, 1, 5, 20}[r.rng.IntN(4)]) * time.Millisecond
}

func (r *redis) acquire(token string, waits bool) (a answer) {
	r.sweep()
	if h := r.holders[token]; h != nil {
		h.ends = r.now.Add(firstLease)
		return answer{fence: h.fence, wanted: len(r.fifo) > 0}
	}
	if r.serve(token) || len(r.fifo) == 0 && r.fits(limitOf(token)) {
		return answer{fence: r.grant(token, firstLease), wanted: len(r.fifo) > 0, room: r.room(token)}
	}
	if waits && !slices.Contains(r.fifo, token) {
		r.fifo = append(r.fifo, token)
	}
	for _, h := range r.holders {
		a.remaining = h.ends.Sub(r.now)
	}
	return r.told(a, token)
}

// told is an answer with where a token stands.
func (r *redis) told(a answer, token string) answer {
	a.server, a.latest, a.place, a.length = r.clock().UnixMilli(), r.fence, slices.Index(r.fifo, token)+1, len(r.fifo)
	return a
}

// refresh tells of a token's place, unless the key can be had.
func (r *redis) refresh(token string) (a answer) {
	for _, h := range r.holders {
		a.remaining = max(a.remaining, h.ends.Sub(r.now))
	}
	if a = r.told(a, token); a.remaining == 0 {
		a.place = 0
	}
	return a
}

func (r *redis) release(token, other string, waits bool) (a answer) {
	mine := r.holders[token] != nil
	a.owned = mine
	delete(r.holders, token)
	drop := func(token string) {
		r.fifo = slices.DeleteFunc(r.fifo, func(t string) bool { return t == token })
	}
	if !mine {
		drop(token)
	}
	r.sweep()
	switch h := r.holders[other]; {
	case waits && h != nil:
		a.fence = h.fence
	case waits && !slices.Contains(r.fifo, other):
		r.fifo = append(r.fifo, other)
	case !waits && other != "":
		drop(other)
	}
	if r.serve(other) {
		a.fence = r.grant(other, claim)
	}
	return r.told(a, other)
}

// room reports whether one more like token can hold the key.
func (r *redis) room(token string) bool {
	return len(r.fifo) == 0 && limitOf(token) > 1 && r.fits(limitOf(token))
}

// admit grants the key to tokens beside a holder, past others if they are readers and it is
// still there; if it is gone, not for long.
func (r *redis) admit(leader string, fence int64, tokens []string, fences []int64) {
	r.sweep()
	r.serve("")
	mine := r.holders[leader] != nil
	for i, token := range tokens {
		if (mine || r.clock().UnixMicro()-fence < claim.Microseconds()) && r.fits(limitOf(token)) && (limitOf(token) == 0 && mine || len(r.fifo) == 0) {
			fences[i] = r.grant(token, firstLease)
		}
	}
}

func (r *redis) renew(token string, fence int64) bool {
	r.sweep()
	h := r.holders[token]
	if h == nil || h.fence != fence {
		return false
	}
	h.ends = r.now.Add(fullLease)
	return true
}

// rival is a call of another process.
func (r *redis) rival() {
	r.rivals++
	token := fmt.Sprintf("%d:rival.%d", []int{1, 0, 3}[r.rng.IntN(3)], r.rivals)
	if fence := r.acquire(token, true).fence; fence != 0 {
		r.model.seen = fence
		r.after(r.work(), func() { r.release(token, "", false) })
		return
	}
	for holder, h := range r.holders {
		if own(holder) && limitOf(holder) == 1 {
			r.after(r.way(), func() {
				if r.queue != nil {
					r.note("message: wanted, behind %d", h.fence)
					r.model.contendedFence = max(r.model.contendedFence, h.fence)
					r.queue.Wanted(h.fence)
				}
			})
		}
	}
}

// forget loses all of Redis's data.
func (r *redis) forget() {
	r.note("redis forgets")
	r.fifo = nil
	clear(r.holders)
}
