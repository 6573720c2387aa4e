package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/httplock"
)

// routeID is a route as frameworks agree on it: its pattern is in the form of
// httplock.NormalizePattern, but for a colon that is no parameter, which is there without
// its backslash: not all of them write one.
type routeID struct{ method, pattern string }

// parseRoute reads "POST /orders/:id".
func parseRoute(text string) (routeID, error) {
	method, pattern, ok := strings.Cut(text, " ")
	pattern = strings.TrimLeft(pattern, " ")
	switch {
	case !ok:
		return routeID{}, errors.New("is no route; want a method and a pattern, such as POST /orders/:id")
	case !slices.Contains(methods, method):
		return routeID{}, fmt.Errorf("the method %q is unknown%s", clip(method), suggest(method, methods))
	case !strings.HasPrefix(pattern, "/"):
		return routeID{}, errors.New("the pattern does not begin with a slash; want one such as /orders/:id or /orders/{id}")
	case strings.ContainsFunc(pattern, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return routeID{}, errors.New("the pattern has white space or control characters; want none")
	}
	normal := httplock.NormalizePattern(pattern)
	if err := checkPattern(normal); err != nil {
		return routeID{}, err
	}
	return routeID{method, plainColons(normal)}, nil
}

// patternsOf are the patterns that a file may have for that of a router. A host, which
// http.ServeMux may have in one, is in none.
func patternsOf(pattern string) [2]string {
	path := func(pattern string) string { return pattern[max(strings.IndexByte(pattern, '/'), 0):] }
	return [2]string{
		plainColons(path(httplock.NormalizePattern(pattern))),
		path(pattern), // gin takes the backslash away, and http.ServeMux needs none: /items:batch
	}
}

func plainColons(normal string) string { return strings.ReplaceAll(normal, `\:`, ":") }

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

var paramName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkPattern checks a pattern in normal form.
func checkPattern(normal string) error {
	seen := map[string]bool{}
	for _, name := range httplock.PatternParams(normal) {
		if name != "*" && !paramName.MatchString(name) {
			return fmt.Errorf("the pattern has a parameter %q; want letters, digits and underscores", clip(name))
		}
		if seen[name] {
			return fmt.Errorf("the pattern has the parameter %q twice", name)
		}
		seen[name] = true
	}
	segments := strings.Split(normal[1:], "/")
	for i, s := range segments {
		bare := s
		if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
			bare = s[1 : len(s)-1]
		}
		if strings.ContainsAny(bare, "{}") {
			return errors.New("the pattern has a brace too many; want {name} or :name between two slashes, or \\: for a colon")
		}
		if (s == "*" || s == "{$}" || strings.HasSuffix(s, "...}")) && i < len(segments)-1 {
			return errors.New("the pattern goes on after what takes the rest of a path; want that at its end")
		}
	}
	return nil
}

// template is the key of a guard, and what it reads, whichever values of a context
// there are: that is known at Build.
func (g *guardSection) template() (*httplock.KeyTemplate, error) {
	return httplock.ParseTemplate(g.Key, anyValues(contextNames(g.Key))...)
}

var contextValue = regexp.MustCompile(`\{ctx\.([^{}|]+)[|}]`)

// contextNames are the names of the {ctx.NAME} in a template, and perhaps some of what
// only looks like one.
func contextNames(text string) (names []string) {
	for _, m := range contextValue.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// anyValues lets a template name values of a context that nothing has.
func anyValues(names []string) (values []httplock.TemplateOption) {
	for _, name := range names {
		values = append(values, httplock.TemplateValue(name, func(context.Context) (string, bool) { return "", false }))
	}
	return values
}

// key makes the key function of a guard. A value of a context that Build was not
// given is a problem.
func (c *compiler) key(path string, g *guardSection) httplock.KeyFunc {
	known, names := c.runtime.options.values, contextNames(g.Key)
	missing := 0
	for i, name := range names {
		if _, ok := known[name]; ok {
			continue
		}
		others := slices.Delete(slices.Clone(names), i, i+1)
		if _, err := httplock.ParseTemplate(g.Key, anyValues(others)...); err != nil { // it is used
			missing++
			c.unregistered(path, "WithValue", name, slices.Sorted(maps.Keys(known)))
		}
	}
	if missing > 0 {
		return nil
	}
	t, err := httplock.ParseTemplate(g.Key, slices.Collect(maps.Values(known))...)
	if err != nil {
		c.badTemplate(path, err)
		return nil
	}
	return t.Key
}

// badTemplate reports all that is wrong with a template.
func (r *report) badTemplate(path string, err error) {
	for _, problem := range templateProblems(err) {
		r.at(path, "%s", problem)
	}
}

func templateProblems(err error) (problems []string) {
	errs := []error{err}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		errs = many.Unwrap()
	}
	for _, err := range errs {
		if t, ok := errors.AsType[*httplock.TemplateError](err); ok {
			problems = append(problems, fmt.Sprintf("character %d: %s", t.Column, t.Problem))
		} else {
			problems = append(problems, reason(err))
		}
	}
	return problems
}

// checkKey looks for what a guard's key lacks, whatever the route.
func (d *decoder) checkKey(p *probe, path string, g *guardSection) {
	at := member(path, "key")
	if g.Key == "" {
		return
	}
	t, err := g.template()
	if err != nil {
		d.badTemplate(at, err)
		return
	}
	d.checkFixedKey(path, &g.leaseSection, t)
	if !d.file.conflicts(&g.leaseSection).parks() {
		return
	}
	for _, name := range t.Headers() {
		if err := p.takes(httplock.AllowHeaders(name)); err != nil {
			d.at(at, "the key reads the header %s, which is never stored: a parked request could not be run; want another key, or no policy delay", name)
			continue
		}
		if !slices.Contains(d.file.storedHeaders(g), name) {
			d.at(at, "the key reads the header %s, which is not stored with a parked request; want it in allow_headers", name)
		}
	}
}

// checkFixedKey looks for a key that is the same for all, where that is not meant.
func (d *decoder) checkFixedKey(path string, g *leaseSection, t *httplock.KeyTemplate) {
	switch fixed := member(path, "fixed_key"); {
	case t.Fixed() == g.FixedKey || d.failed(fixed):
	case g.FixedKey:
		d.at(fixed, "the key has a value in it, so it is not the same for all; want a key without braces, or no fixed_key")
	default:
		d.at(member(path, "key"), "the key has no value in it, so that all exclude one another; "+
			"want one in braces, such as order:{param.id}, or fixed_key: true if it is meant")
	}
}

// storedHeaders are those that are stored with the parked requests of a guard.
func (f *File) storedHeaders(g *guardSection) []string {
	names := slices.Concat(httplock.StoredHeaders(), f.says.Defaults.HTTP.AllowHeaders, g.HTTP.AllowHeaders)
	for i, name := range names {
		names[i] = http.CanonicalHeaderKey(name)
	}
	return names
}

// conflicts is what a guard does about a held key.
func (f *File) conflicts(g *leaseSection) chain {
	if g.OnConflict == nil {
		return f.says.Defaults.OnConflict
	}
	return g.OnConflict
}

func (d *decoder) checkRoutes(p *probe, queues []string) {
	says, first := &d.file.says, map[routeID]string{}
	for _, text := range d.inOrder("routes", slices.Collect(maps.Keys(says.Routes))) {
		route, path := says.Routes[text], member("routes", text)
		id, err := parseRoute(text)
		if err != nil {
			d.at(path, "%v", err)
		} else if other, ok := first[id]; ok {
			d.at(path, "is the same route as %q", clip(other))
		} else {
			first[id] = text
		}
		g := route.own
		if g != nil {
			d.checkGuard(p, path, g, queues)
		} else if g = d.guardNamed(route.guard, path, route.where); g == nil {
			continue
		}
		d.checkRouteKey(path, route, g, id)
		d.checkRouteMethod(path, route, g, id)
	}
}

// guardNamed is a guard of the file. Nil: there is none of the name, which is reported.
func (d *decoder) guardNamed(name, path string, where place) *guardSection {
	guards := d.file.says.Guards
	g := guards[name]
	if g == nil && name != "" && !d.failed(member("guards", name)) {
		d.in(where, path, fmt.Sprintf("there is no guard %q%s", clip(name), suggest(name, slices.Sorted(maps.Keys(guards)))))
	}
	return g
}

// checkRouteMethod looks for routes whose requests need no key.
func (d *decoder) checkRouteMethod(path string, route *routeSection, g *guardSection, id routeID) {
	from := path
	if route.own == nil {
		from = member("guards", route.guard)
	}
	said := cmp.Or(g.HTTP.SafeMethods, d.file.says.Defaults.HTTP.SafeMethods) != "" ||
		d.failed(member(from, "safe_methods")) || d.failed("defaults.safe_methods")
	switch id.method {
	case http.MethodGet, http.MethodHead:
		if !said {
			d.in(route.where, path, "guards nothing: GET and HEAD need no key unless safe_methods says so; "+
				"want safe_methods: lock or share in the guard or the defaults, or pass if nothing is meant")
		}
	case http.MethodOptions:
		d.in(route.where, path, "guards nothing: OPTIONS never needs a key; leave it out")
	}
}

// checkRouteKey looks for what a guard's key lacks under one route.
func (d *decoder) checkRouteKey(path string, route *routeSection, g *guardSection, id routeID) {
	at, where := member(path, "key"), route.where
	guard := "the guard"
	if route.own == nil {
		at, guard = member(member("guards", route.guard), "key"), fmt.Sprintf("the guard %q", route.guard)
	}
	if g.Key == "" {
		if !d.failed(at) {
			d.in(where, path, guard+" has no key; want a field key in it, such as order:{param.id}")
		}
		return
	}
	t, err := g.template()
	if err != nil || id.pattern == "" {
		return // reported already
	}
	has := httplock.PatternParams(id.pattern)
	for _, name := range t.Params() {
		if !slices.Contains(has, name) {
			d.in(where, path, fmt.Sprintf("the key of %s reads {param.%s}, which the pattern does not have%s", guard, clip(name), suggest(name, has)))
		}
	}
}

// inOrder sorts names by where the file has them, so that the second of two is the one
// that is wrong.
func (d *decoder) inOrder(path string, names []string) []string {
	slices.SortFunc(names, func(a, b string) int {
		x, y := d.file.places[member(path, a)], d.file.places[member(path, b)]
		if x.line != y.line {
			return x.line - y.line
		}
		return x.column - y.column
	})
	return names
}
