package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Reload puts a new file into force, for all routes at once. Requests that are under way
// end under the guard that they began with. After an error the old file stays in
// force: it is an *Error that names the lines, or core.ErrClosed.
//
// A reload changes what is under defaults, guards, routes and asynq, and of queues max_age,
// max_depth, max_bytes, both also per key and per principal, and max_payload. All else needs a restart, and is
// refused. So is what parked requests would be lost by: the end of a route that has parked
// some since the start, as their replays would find no guard, another principal than it
// had, or none, and a key of a header that was not stored with them. After CheckRoutes, so
// is a route that the router does not have.
func (rt *Runtime) Reload(f *File) error {
	if f == nil {
		return invalid("Reload: the file is nil")
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return fmt.Errorf("config: reload: %w", core.ErrClosed)
	}
	r := f.report()
	rt.checkFixed(r)
	made, found := rt.compile(f)
	if made != nil {
		rt.checkParking(r, made)
		if rt.router != nil {
			checkRouter(r, made, rt.router)
		}
	}
	r.Add(found.Report)
	if err := r.err(); err != nil {
		return err
	}
	for id, before := range rt.current.Load().routes {
		if _, ok := made.routes[id]; !ok {
			rt.log().Warn("config: a route was removed: its requests need no key any more", "file", f.name, "route", before.text)
		}
	}
	rt.adopt(made)
	rt.log().Info("config: reloaded", "file", f.name)
	return nil
}

// reloadable are the fields of a queue that only who fills it looks at.
var reloadable = []string{"max_age", "max_depth", "max_depth_per_key", "max_bytes", "max_bytes_per_key", "max_bytes_per_principal", "max_payload"}

// checkFixed reports what needs a restart.
func (rt *Runtime) checkFixed(r *report) {
	was, is := rt.started.says, r.file.says
	const restart = "changed since the start; a reload cannot change it: put it back, or restart"
	if rt.started.prefix() != r.file.prefix() {
		r.At("prefix", restart)
	}
	if was.Service != is.Service {
		r.At("service", restart)
	}
	if rt.options.client == nil {
		for _, path := range differences("redis", reflect.ValueOf(was.Redis), reflect.ValueOf(is.Redis)) {
			r.At(path, restart)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was.Queues)) {
		path, now := member("queues", name), is.Queues[name]
		if now == nil {
			r.At(path, "the queue was removed, and may hold parked requests; put it back, and take it out at a restart when it is empty")
			continue
		}
		for _, at := range differences(path, reflect.ValueOf(*was.Queues[name]), reflect.ValueOf(*now)) {
			if !slices.Contains(reloadable, strings.TrimPrefix(at, path+".")) {
				r.At(at, restart)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.Queues)) {
		if was.Queues[name] == nil {
			r.At(member("queues", name), "the queue is new, and nobody may run what it holds; restart with a worker for it")
		}
	}
}

// checkParking reports what requests that may be parked still need.
func (rt *Runtime) checkParking(r *report, made *state) {
	for id, before := range rt.parking {
		path := member("routes", before.text)
		now, ok := made.routes[id]
		switch {
		case !ok:
			r.At(path, "the route was removed, and may have parked requests, which would find no guard; put it back with another policy, and take it out at a restart")
			continue
		case before.principal == "" || now.principal == before.principal:
		case now.principal == "":
			r.At(member("routes", now.text), "the route has no principal any more, and may have parked requests on one's behalf; put it back")
		default: // one's id may be another's to the other
			r.At(member("routes", now.text), "the route's principal was %q, and it may have parked requests on behalf of one; put it back, "+
				"and change it at a restart when none is parked", strictyaml.Clip(before.principal))
		}
		for _, name := range now.reads {
			if !slices.Contains(before.stored, name) {
				r.At(member("routes", now.text), "the key reads the header %s now, which requests that are parked may not have; put the old key back, "+
					"and change it at a restart when none is parked", name)
			}
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
