package config

import (
	"maps"
	"slices"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// An entry of routes or asynq that is gone is named by unguard as it was: each stands for itself alone. What was
// guarded by "mail:send" is not by "mail:*", which may have another key, nor HEAD's by GET's.

// unguarded are the entries of unguard: routes, and types of tasks as section asynq has them, which get no method. A type may look
// like a route.
func (f *File) unguarded() map[routeID]bool {
	entries := map[routeID]bool{}
	for _, text := range f.spec.Unguard {
		entries[routeID{pattern: text}] = true
		if id, err := parseRoute(text); err == nil {
			entries[id] = true
		}
	}
	return entries
}

// checkUnguard looks for entries of unguard that have a guard all the same.
func (c *checker) checkUnguard() {
	spec, routes := &c.file.spec, map[routeID]string{}
	for text := range spec.Routes {
		if id, err := parseRoute(text); err == nil {
			routes[id] = text
		}
	}
	const beside = "is in unguard, but %s has a guard for it; remove one of the two"
	for i, text := range spec.Unguard {
		at := item("unguard", i)
		id, err := parseRoute(text)
		switch {
		case c.Failed(at):
		case spec.Asynq[text] != nil:
			c.At(at, beside, member("asynq", text))
		case err == nil && routes[id] != "":
			c.At(at, beside, member("routes", routes[id]))
		}
	}
}

// checkDropped reports the guards that a new file takes away in silence, as one does that lost its end.
func (rt *Runtime) checkDropped(r *report, before, made *state) {
	const dropped = "the new file has no guard for %s, so that what has one key would run at once; " +
		"put it back or, if this is meant, add it to the file's list: unguard: [%q]"
	var routes []string
	for id, was := range before.routes {
		if _, kept := made.routes[id]; !kept && !made.unguarded(id) {
			routes = append(routes, was.text)
		}
	}
	slices.Sort(routes)
	for _, text := range routes {
		r.At(member("routes", text), dropped, "this route", text)
	}
	for _, taskType := range slices.Sorted(maps.Keys(before.tasks)) {
		if _, kept := made.tasks[taskType]; !kept && !made.unguarded(routeID{pattern: taskType}) {
			r.At(member("asynq", taskType), dropped, "these tasks", taskType)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.guards)) {
		if _, used := rt.asked.Load(name); used && made.guards[name] == nil {
			r.At(member("guards", name), "the new file has no such guard, but the program asks for it: put it back, or restart a program that does not call Guard(%q)",
				strictyaml.Clip(name))
		}
	}
}

// warnUnguarded logs what unguard lists.
func (rt *Runtime) warnUnguarded(f *File) {
	if list := f.spec.Unguard; len(list) > 0 {
		rt.log().Warn("config: unguard: these have no guard of their own, as the file says: what has one key may run at once", "file", f.name, "unguard", list)
	}
}

func (s *state) unguarded(id routeID) bool { return s.file.unguarded()[id] }

// Warnings returns what may not be meant in a file that is right, with its place: a file with neither routes nor asynq,
// which may have lost its end, and what unguard lists.
func (f *File) Warnings() []Problem {
	r := f.report()
	if len(f.spec.Routes)+len(f.spec.Asynq) == 0 {
		r.At("", "guards nothing: it has neither routes nor asynq, so that only what the program takes from it with Guard(NAME) has a guard")
	}
	for i, text := range f.spec.Unguard {
		r.At(item("unguard", i), "%s has no guard of its own, as this list says", strictyaml.Clip(text))
	}
	return r.problems()
}
