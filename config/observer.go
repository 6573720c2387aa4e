package config

import (
	"context"
	"encoding/hex"
	"slices"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/observing"
	"github.com/perkey-go/perkey/ops"
)

// Observer gets the outcome of each new file. Its methods are called on the goroutine of Reload or
// Watch: they must be safe for concurrent use and return quickly, and must not call Reload or
// CheckRoutes, which wait for them. A panic is logged. Embed [NopObserver], so that new methods do
// not break yours.
type Observer interface {
	// OnReload is called once for each call of Reload, and for each changed file that Watch has put
	// into force or refused. For a file that Watch tries again and again it is called once, as long
	// as the reason is the same.
	OnReload(ctx context.Context, e Reloaded)
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnReload does nothing.
func (NopObserver) OnReload(context.Context, Reloaded) {}

// ReloadKind is the kind of a Reloaded. The kinds are few and fixed: they make good metric labels.
type ReloadKind string

// The kinds of outcome of a file.
const (
	// ReloadDone: it is in force.
	ReloadDone ReloadKind = "done"
	// ReloadUnchanged: it is the one in force, byte for byte, with the same environment. Nothing was done.
	ReloadUnchanged ReloadKind = "unchanged"
	// ReloadRefused: the file before it stays in force.
	ReloadRefused ReloadKind = "refused"
)

// Reloaded is the outcome of a new file.
type Reloaded struct {
	Kind ReloadKind
	// Name is the file's name.
	Name string
	// Version and Hash are those of the file in force now.
	Version int
	Hash    string
	// Err is why the file was refused.
	Err error
}

// WithObserver sets an Observer, which gets the outcome of each new file.
func WithObserver(o Observer) Option {
	return func(opts *options) error {
		if nilcheck.IsNil(o) {
			return invalid("WithObserver: the observer is nil")
		}
		opts.observer = o
		return nil
	}
}

// WithRecorder sets a Recorder, which counts the events of the Locker, the queues, the routes, the idempotency store,
// new files, and the tasks of asynqlock.FromConfig. With the section ops in the file there is a Recorder without this
// option. Lost leases and warnings are still logged. An observer that WithLocker, WithQueue, WithHTTP or
// WithIdempotency gives takes the place of r's: make it with Recorder.Locks, Queues, Requests or Idempotency, for r to
// count too.
func WithRecorder(r *ops.Recorder) Option {
	return func(opts *options) error {
		if r == nil {
			return invalid("WithRecorder(nil)")
		}
		opts.recorder = r
		return nil
	}
}

// record puts the recorder's observers before what the other options give.
func (o *options) record() {
	if r := o.recorder; r != nil {
		o.locker = slices.Concat([]core.Option{core.WithObserver(r.Locks(core.DefaultObserver(o.log)))}, o.locker)
		o.queue = slices.Concat([]delayqueue.Option{delayqueue.WithQueueObserver(r.Queues(nil))}, o.queue)
		o.http = slices.Concat([]httplock.Option{httplock.WithObserver(r.Requests(nil))}, o.http)
		o.records = slices.Concat([]idempotency.Option{idempotency.WithObserver(r.Idempotency(nil))}, o.records)
	}
}

// Hash returns the SHA-256 of the file's content, in hexadecimal digits. Files that it names, and
// the environment, are not included.
func (f *File) Hash() string { return hex.EncodeToString(f.sum[:]) }

// Version counts the files that were in force: Build's is 1.
func (rt *Runtime) Version() int { return rt.current.Load().version }

// refused is reloaded for a file that was not taken.
func (rt *Runtime) refused(ctx context.Context, name string, err error) {
	rt.reloads.Lock()
	defer rt.reloads.Unlock()
	rt.reloaded(ctx, ReloadRefused, name, err)
}

// reloaded tells the recorder and the observer what became of a file, with reloads held: what is told last is in force.
func (rt *Runtime) reloaded(ctx context.Context, kind ReloadKind, name string, err error) {
	s := rt.current.Load()
	if rt.options.recorder != nil {
		rt.options.recorder.CountReload(string(kind), s.version, s.file.Hash())
	}
	if rt.options.observer == nil {
		return
	}
	e := Reloaded{kind, name, s.version, s.file.Hash(), err}
	observing.Tell(ctx, rt.options.log, "config", func() { rt.options.observer.OnReload(ctx, e) })
}
