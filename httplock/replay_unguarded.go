package httplock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/perkey-go/perkey/delayqueue"
)

var (
	errNoRoute = errors.New("this service has no such route: services that share a Redis need a prefix or queue names of their own, " +
		"and routes of one host that is not in their pattern need WithReplayHost")
	errUnguarded     = errors.New("the route has no guard")
	errRefused       = errors.New("middleware in front of the guard refused it, and must let replays pass")
	errNoReauthorize = errors.New("it was parked on a principal's behalf, and nothing says whether that one may still have it run: give Replay WithReplayReauthorize")
	errNotAuthorized = errors.New("the replay was not authorized")
)

// refusals are how middleware in front turns a request away: credentials are not stored,
// and a replay has no TLS and no host, which a redirect to https asks for.
var refusals = []int{
	http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
	http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
}

// unserved is why a replay is not run at a place. Nil: it may be run.
func (at place) unserved() error {
	switch at {
	case placeAbsent:
		return errNoRoute
	case placeUnguarded:
		return errUnguarded
	}
	return nil
}

// locate finds out what is known of a replay's route, without calling it.
func (p *replayer) locate(r *http.Request) place {
	at := locate(p.handler, r, "")
	if at == placeUnknown && p.registered != nil {
		at = locateAmong(p.registered(), p.guards, r)
	}
	return at
}

// authorize asks whether the principal may still have the replay run, unless a guard will.
func (p *replayer) authorize(replay *replay, r *http.Request, at place) error {
	if p.reauthorize == nil {
		return p.requireReauthorize(replay, at)
	}
	b := body{}
	b.use(r)
	b.lentMost = r.ContentLength // it is in memory
	err := b.lend(r, func() error { return p.reauthorize(r, replay.principal) })
	if err == nil {
		r.Body = b.reader()
		replay.authorized()
	}
	return err
}

// requireReauthorize is an error if no function would be asked whether the principal may have the replay run.
func (p *replayer) requireReauthorize(replay *replay, at place) error {
	if p.reauthorize == nil && replay.principal != "" && at != placeAsks {
		return errNoReauthorize
	}
	return nil
}

// unguardedOutcome classifies a response that no guard has seen: nil is a result.
func (p *replayer) unguardedOutcome(ctx context.Context, m delayqueue.Message, at place, w *recorder) error {
	switch status := w.status; {
	case slices.Contains(refusals, status):
		return p.handBack(ctx, m, fmt.Errorf("answered with status %d before it reached its guard: %w", status, errRefused))
	case at < placeServed && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return p.handBack(ctx, m, fmt.Errorf("answered with status %d before it reached its guard: %w", status, errNoRoute))
	case status == http.StatusServiceUnavailable:
		return tryAgain(m.ID, isTriedAgain, w)
	case at >= placeGuarded: // not tried again: if the chain lacks the guard that WithRoutes names, the handler has run
		p.warnInFront(ctx, m, status)
		return delayqueue.SkipRetry(&noResultError{m.ID, " in front of its guard: it did not run", status})
	case status >= http.StatusBadRequest && status != http.StatusNotFound && status != http.StatusMethodNotAllowed:
		p.warnInFront(ctx, m, status)
		return delayqueue.SkipRetry(&noResultError{m.ID, ", and no guard saw it: whether its handler ran is not known", status})
	}
	if p.warned.first(m.Name) {
		slog.WarnContext(ctx, "httplock: a parked request met no guard: its handler ran once, under the worker's lock, and its response is the result",
			"name", m.Name, "id", m.ID, "status", w.status)
	}
	return nil
}

func (p *replayer) warnInFront(ctx context.Context, m delayqueue.Message, status int) {
	if p.warned.first(m.Name) {
		slog.WarnContext(ctx, "httplock: a parked request was answered before it reached a guard, which is no result: replays must pass what is in front",
			"name", m.Name, "id", m.ID, "status", status)
	}
}

// handBack leaves a message to a process that knows how to run it.
func (p *replayer) handBack(ctx context.Context, m delayqueue.Message, why error) error {
	if p.warned.first(m.Name) {
		slog.WarnContext(ctx, "httplock: parked requests of a route are handed back: if no other process runs them they expire",
			"name", m.Name, "id", m.ID, "error", why)
	}
	return delayqueue.HandBack(fmt.Errorf("httplock: replay of %s: %w", m.ID, why))
}

// warned are the routes for which a warning was logged.
type warned struct {
	mu    sync.Mutex
	names map[string]bool
}

// maxWarned bounds them, since clients choose a part of a name.
const maxWarned = 1000

// first reports whether this is the first warning for a route.
func (w *warned) first(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.names[name] || len(w.names) >= maxWarned {
		return false
	}
	if w.names == nil {
		w.names = map[string]bool{}
	}
	w.names[name] = true
	return true
}
