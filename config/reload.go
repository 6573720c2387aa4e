package config

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Reload puts a new file into force, for all routes and tasks at once. Requests that are under way
// end under the guard that they began with. After an error the old file stays in force. The error
// is an *Error that names the lines, or it wraps core.ErrClosed or, if Redis had to be asked and
// did not answer, core.ErrUnavailable. A panic on the way is logged, and is an error too.
//
// A reload changes what is under defaults, guards, routes, asynq and idempotency, and of queues max_age,
// max_depth, max_bytes, both also per key and per principal, and max_payload; partitions is for queues
// that are new. Any other change needs a restart, and is refused. After CheckRoutes, so is a file that
// it would not accept.
//
// A file that takes the guard from a route or a type of tasks is refused, unless its list unguard has that one: it may
// have lost its end. So is one without a guard that the program has asked for with Guard.
//
// Reload also refuses changes by which parked requests, dead letters among them, would be lost:
// removing a queue that holds any; and, for a route that has some, removing the route, since their
// replays would find no guard, changing or removing its principal, and a key that reads another
// header. For a file with such a change it asks Redis what is parked, for at most 30 s. Of
// processes with one file in force all accept the next one, or none does.
//
// A file that is identical to the one in force, with the same environment, changes nothing: files
// that it names are not read again.
func (rt *Runtime) Reload(f *File) error {
	if f == nil {
		return invalid("Reload: the file is nil")
	}
	ctx := context.Background()
	err := rt.reload(ctx, f)
	if err != nil {
		rt.refused(ctx, f.name, err)
	}
	return err
}

// reload tells the observer, unless the file is refused.
func (rt *Runtime) reload(ctx context.Context, f *File) error {
	rt.reloads.Lock()
	defer rt.reloads.Unlock()
	if rt.closing.Err() != nil {
		return fmt.Errorf("config: reload: %w", core.ErrClosed)
	}
	before := rt.current.Load()
	if f.sum == before.file.sum && reflect.DeepEqual(f.spec, before.file.spec) {
		rt.reloaded(ctx, ReloadUnchanged, f.name, nil)
		return nil
	}
	made, err := rt.judge(ctx, f, before)
	if err != nil {
		return err
	}
	rt.warnUnguarded(f)
	for name := range before.queues {
		if made.queues[name] == nil {
			rt.log().Warn("config: a queue was removed: its workers go on until Shutdown", "file", f.name, "queue", name)
		}
	}
	made.version = before.version + 1
	rt.current.Store(made)
	rt.log().Info("config: reloaded", "file", f.name)
	rt.reloaded(ctx, ReloadDone, f.name, nil)
	return nil
}

// judge makes what a file says, if it may replace what is in force.
func (rt *Runtime) judge(ctx context.Context, f *File, before *state) (made *state, err error) {
	defer func() { err = rt.caught(ctx, f.name, recover(), err) }()
	r := f.report()
	rt.checkFixed(r)
	made, found := rt.compile(f)
	var unasked error
	if made != nil {
		rt.checkDropped(r, before, made)
		unasked = rt.checkParked(ctx, r, before, made)
		if rt.router != nil {
			rt.router.check(r, made, before)
		}
	}
	r.Add(found.Report)
	return made, cmp.Or(r.err(), unasked)
}

// caught makes an error of what was recovered where a file was read that shall replace another. The service goes on under
// the file that it has, whatever is wrong with this package.
func (rt *Runtime) caught(ctx context.Context, name string, recovered any, err error) error {
	if recovered == nil {
		return err
	}
	rt.log().ErrorContext(ctx, "config: a panic over a new file", "file", name, "panic", fmt.Sprint(recovered), "stack", string(debug.Stack()))
	return fmt.Errorf("config: reload: a mistake in perkey, not in %s: panic: %v", name, recovered)
}

// reloadable are the fields of a queue that only who fills it looks at.
var reloadable = []string{
	"max_age", "max_depth", "max_depth_per_key", "max_bytes", "max_bytes_per_key", "max_bytes_per_principal", "max_payload",
}

// checkFixed reports what needs a restart.
func (rt *Runtime) checkFixed(r *report) {
	was, is := rt.started.spec, r.file.spec
	const restart = "changed since the start; a reload cannot change it: put it back, or restart"
	if rt.started.prefix() != r.file.prefix() {
		r.At("prefix", restart)
	}
	if was.Service != is.Service {
		r.At("service", restart)
	}
	if !reflect.DeepEqual(was.Ops, is.Ops) {
		r.At("ops", restart)
	}
	if rt.options.client == nil {
		for _, path := range differences("redis", reflect.ValueOf(was.Redis), reflect.ValueOf(is.Redis)) {
			r.At(path, restart)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was.Queues)) {
		path, now := member("queues", name), is.Queues[name]
		if now == nil {
			continue // see checkParked
		}
		for _, at := range differences(path, reflect.ValueOf(*was.Queues[name]), reflect.ValueOf(*now)) {
			if !slices.Contains(reloadable, strings.TrimPrefix(at, path+".")) {
				r.At(at, restart)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.Queues)) {
		if was.Queues[name] == nil {
			r.At(member("queues", name), "the queue is new, and may have no worker; restart with a worker for it")
		}
	}
}

// differences lists the paths of what is not the same in two sections.
func differences(path string, a, b reflect.Value) (paths []string) {
	for _, f := range strictyaml.Fields(a.Type()) {
		at, x, y := member(path, f.Name), a.FieldByIndex(f.Index), b.FieldByIndex(f.Index)
		if x.Kind() == reflect.Pointer && x.Type().Elem().Kind() == reflect.Struct && !x.IsNil() && !y.IsNil() {
			x, y = x.Elem(), y.Elem()
		}
		switch {
		case x.Type() == reflect.TypeFor[strictyaml.Secret]():
			if x.Interface().(strictyaml.Secret).Reveal() != y.Interface().(strictyaml.Secret).Reveal() {
				paths = append(paths, at)
			}
		case x.Kind() == reflect.Struct:
			paths = append(paths, differences(at, x, y)...)
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			paths = append(paths, at)
		}
	}
	return paths
}
