package httplock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// Replay returns the worker's handler that runs parked requests through handler,
// in this process. Give it the handler that the server serves.
//
// A response of 2xx, 3xx or 4xx from behind a guard is a result: the message is
// done, whether or not the request succeeded. 5xx is an error that the queue
// tries again, and so is a 4xx of a handler whose ctx had ended. A panic passes
// through to the worker. A payload that does not hold a request is never tried
// again. When a guard on the way finds its key held, the error matches
// core.ErrConflict.
//
// A response that was written before any guard let the request pass is no
// result, whatever its status: the handler never ran. So it is with the 401 of
// middleware that does not let replays pass, with the 404 of a route that is no
// more or of a wrong handler, and with a key function that fails, such as for a
// header that was not stored. These too are errors that the queue tries again,
// and at last the cause of a dead letter. A request that a guard's Skip lets pass
// has a result if the status is 2xx or 3xx.
//
// The worker's Locker should be the one of the guards, or have the same client
// and prefix. Otherwise a replay meets the worker's own lease as a conflict.
//
// The request has no Host, no RemoteAddr and no TLS state. Its ctx is the
// worker's: it ends with the lease, and when the worker stops.
func Replay(handler http.Handler) delayqueue.Handler {
	if handler == nil {
		return func(context.Context, delayqueue.Message) error {
			return invalid("Replay(nil)")
		}
	}
	return func(ctx context.Context, m delayqueue.Message) error {
		c, err := decode(m.Payload)
		if err != nil {
			return delayqueue.SkipRetry(err)
		}
		replay := &replay{id: m.ID, key: m.Key}
		r, err := c.request(context.WithValue(ctx, replayKey{}, replay))
		if err != nil {
			return delayqueue.SkipRetry(err)
		}
		defer func() {
			if r.MultipartForm != nil {
				_ = r.MultipartForm.RemoveAll()
			}
		}()
		w := newRecorder(ctx)
		handler.ServeHTTP(w, r)
		return replay.outcome(ctx, w.statusCode())
	}
}

// Replayed reports whether ctx is that of a replayed request, and under which
// ticket it was parked. Middleware that asks for credentials, which are not
// stored, must let a replay pass: it was let in when it was parked, and if it is
// refused now it ends as a dead letter. A handler can tell by the id that it runs
// a second time.
//
// No header has a part in this: only Replay can mark a ctx.
func Replayed(ctx context.Context) (id string, ok bool) {
	if replay := replayFrom(ctx); replay != nil {
		return replay.id, true
	}
	return "", false
}

// replay is what a replayed request's ctx carries.
type replay struct {
	id, key string

	mu       sync.Mutex // handlers may call guarded ones on other goroutines
	reached  bool       // a guard ran its handler under the key, or deferred the request
	skipped  bool       // a guard let the request pass without a key
	conflict error      // the first one that a guard met
	failure  error      // the first other reason why a guard did not run its handler
}

type replayKey struct{}

func replayFrom(ctx context.Context) *replay {
	r, _ := ctx.Value(replayKey{}).(*replay)
	return r
}

// passed records that a guard lets the replay pass, with or without its key. A
// nil replay is a request that came from outside.
func (r *replay) passed(underKey bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if underKey {
		r.reached = true
	} else {
		r.skipped = true
	}
}

// refused records that a guard did not let the replay pass. The key is empty if
// the guard got none. A nil replay is a request that came from outside.
func (r *replay) refused(key string, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, core.ErrDeferred):
		r.reached = true // a policy has stored it elsewhere: that is a result
	case errors.Is(err, core.ErrConflict), errors.Is(err, errReplayWaits):
		hint := ""
		if key == r.key {
			hint = " (the message's own key: the worker's locker and the guard's must share client and prefix)"
		}
		r.conflict = cmp.Or(r.conflict, fmt.Errorf("httplock: replay of %s: %w%s: %w", r.id, core.ErrConflict, hint, err))
	default:
		r.failure = cmp.Or(r.failure, fmt.Errorf("httplock: replay of %s: %w", r.id, err))
	}
}

// outcome turns a response into what the queue goes by.
func (r *replay) outcome(ctx context.Context, status int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.conflict != nil:
		return r.conflict
	case r.failure != nil:
		return r.failure
	case status >= http.StatusBadRequest && ctx.Err() != nil:
		// The handler gave up because it was told to.
		return fmt.Errorf("httplock: replay of %s: interrupted, and answered with status %d: %w", r.id, status, context.Cause(ctx))
	case !r.reached && (!r.skipped || status >= http.StatusBadRequest):
		// Somebody on the way answered. A success behind a guard that was skipped is
		// the handler's: to run it again would do its work twice.
		return fmt.Errorf("httplock: replay of %s: answered with status %d before it reached its guard", r.id, status)
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("httplock: replay of %s: the handler answered with status %d", r.id, status)
	default:
		return nil
	}
}

// request makes the request that a handler sees.
func (c *capture) request(ctx context.Context) (*http.Request, error) {
	u, err := c.url()
	if err != nil {
		return nil, fmt.Errorf("httplock: replay: %w", err)
	}
	r := &http.Request{
		Method: c.Method, URL: u, RequestURI: c.Target,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.Header, Body: http.NoBody,
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if len(c.body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(c.body)), int64(len(c.body))
	}
	return r.WithContext(ctx), nil
}
