package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/perkey-go/perkey/httplock"
	methods "github.com/perkey-go/perkey/internal/method"
	"github.com/perkey-go/perkey/internal/strictyaml"
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
		return routeID{}, errors.New("expected a method and a pattern, such as POST /orders/:id")
	case !slices.Contains(methods.All, method):
		return routeID{}, fmt.Errorf("unknown method %q%s", strictyaml.Clip(method), strictyaml.Suggest(method, methods.All))
	case !strings.HasPrefix(pattern, "/"):
		return routeID{}, errors.New("the pattern does not begin with a slash; expected one such as /orders/:id or /orders/{id}")
	case strings.ContainsFunc(pattern, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return routeID{}, errors.New("the pattern has white space or control characters")
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

var paramName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkPattern checks a pattern in normal form.
func checkPattern(normal string) error {
	seen := map[string]bool{}
	for _, name := range httplock.PatternParams(normal) {
		if name != "*" && !paramName.MatchString(name) {
			return fmt.Errorf("the pattern has a parameter %q; expected letters, digits and underscores", strictyaml.Clip(name))
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
			return errors.New("the pattern has an unexpected brace; a parameter is {name} or :name between two slashes, and \\: is a colon")
		}
		if (s == "*" || s == "{$}" || strings.HasSuffix(s, "...}")) && i < len(segments)-1 {
			return errors.New("the pattern goes on after a parameter that takes the rest of the path")
		}
	}
	return nil
}

// template is the key of a guard, and what it reads.
func (g *guardSection) template() (*keyTemplate, []string) { return parseTemplate(g.Key, nil) }

// key makes the key function of a guard. A value of a context that Build was not
// given is a problem.
func (c *compiler) key(path string, t *keyTemplate, g *guardSection) httplock.KeyFunc {
	known := c.runtime.options.values
	for _, name := range t.values {
		if known[name] == nil {
			c.unregistered(path, "WithValue", name, slices.Sorted(maps.Keys(known)))
		}
	}
	t, _ = parseTemplate(g.Key, known)
	return t.key
}

// badTemplate reports all that is wrong with a template.
func (r *report) badTemplate(path string, problems []string) {
	for _, problem := range problems {
		r.At(path, "%s", problem)
	}
}

// checkKey looks for what a guard's key lacks, whatever the route.
func (c *checker) checkKey(p *probe, path string, g *guardSection) {
	at := member(path, "key")
	if g.Key == "" {
		return
	}
	t, problems := g.template()
	if t == nil {
		c.badTemplate(at, problems)
		return
	}
	c.checkFixedKey(path, &g.leaseSection, t)
	if !c.file.conflicts(&g.leaseSection).parks() {
		return
	}
	for _, name := range t.headers {
		if err := p.takes(httplock.WithAllowedHeaders(name)); err != nil {
			c.At(at, "the key reads the header %s, which is never stored, so that a parked request could not be run; use another key, or remove the policy delay", name)
			continue
		}
		if !slices.Contains(c.file.storedHeaders(g), name) {
			c.At(at, "the key reads the header %s, which is not stored with a parked request; add it to allow_headers", name)
		}
	}
}

// checkFixedKey looks for a key that is the same for all, where that is not meant.
func (c *checker) checkFixedKey(path string, g *leaseSection, t *keyTemplate) {
	switch fixed := member(path, "fixed_key"); {
	case t.fixed() == g.FixedKey || c.Failed(fixed):
	case g.FixedKey:
		c.At(fixed, "the key has a value in it, so it is not fixed; remove the braces from the key, or fixed_key")
	default:
		c.At(member(path, "key"), "the key has no value in it, so it is the same for all; "+
			"add one in braces, such as order:{param.id}, or fixed_key: true if it is meant")
	}
}

// storedHeaders are those that are stored with the parked requests of a guard.
func (f *File) storedHeaders(g *guardSection) []string {
	names := slices.Concat(httplock.StoredHeaders(), f.spec.Defaults.HTTP.AllowHeaders, g.HTTP.AllowHeaders)
	for i, name := range names {
		names[i] = http.CanonicalHeaderKey(name)
	}
	return names
}

// conflicts is what a guard does about a held key.
func (f *File) conflicts(g *leaseSection) chain {
	if g.OnConflict == nil {
		return f.spec.Defaults.OnConflict
	}
	return g.OnConflict
}

func (c *checker) checkRoutes(p *probe, queues []string) {
	spec, first := &c.file.spec, map[routeID]string{}
	for text := range inOrder(c, "routes", spec.Routes) {
		route, path := spec.Routes[text], member("routes", text)
		id, err := parseRoute(text)
		if err != nil {
			c.At(path, "%v", err)
		} else if other, ok := first[id]; ok {
			c.At(path, "is the same route as %q", strictyaml.Clip(other))
		} else {
			first[id] = text
		}
		g := route.own
		if g != nil {
			c.checkGuard(p, path, g, queues)
		} else if g = c.guardNamed(route.guard, path, route.where); g == nil {
			continue
		}
		c.checkRouteKey(path, route, g, id)
		c.checkRouteMethod(path, route, g, id)
	}
}

// guardNamed is a guard of the file. Nil: there is none of the name, which is reported.
func (c *checker) guardNamed(name, path string, where strictyaml.Place) *guardSection {
	guards := c.file.spec.Guards
	g := guards[name]
	if before, after, ok := strings.Cut(name, ": "); g == nil && ok {
		section, began, _ := strings.Cut(path, ".") // YAML takes the first colon within braces for the end of the name
		what := map[string]string{"routes": "route", "asynq": "type"}[section]
		if unquoted, err := strconv.Unquote(began); err == nil {
			began = unquoted
		}
		c.At(path, "quote the %s, as in {%q: %s}: its colon ends it here, so that its guard would be %q",
			what, strictyaml.Clip(began+":"+before), strictyaml.Clip(after), strictyaml.Clip(name))
		return nil
	}
	if g == nil && name != "" && !c.Failed(member("guards", name)) {
		c.In(where, path, "unknown guard %q%s", strictyaml.Clip(name), strictyaml.Suggest(name, slices.Sorted(maps.Keys(guards))))
	}
	return g
}

// checkRouteMethod looks for routes whose requests need no key.
func (c *checker) checkRouteMethod(path string, route *routeSection, g *guardSection, id routeID) {
	from := path
	if route.own == nil {
		from = member("guards", route.guard)
	}
	said := cmp.Or(g.HTTP.SafeMethods, c.file.spec.Defaults.HTTP.SafeMethods) != "" ||
		c.Failed(member(from, "safe_methods")) || c.Failed("defaults.safe_methods")
	switch id.method {
	case http.MethodOptions:
		c.In(route.where, path, "guards nothing: OPTIONS never needs a key; remove the route")
	default:
		if methods.IsSafe(id.method) && !said {
			c.In(route.where, path, "guards nothing: GET, HEAD and other safe methods need no key unless safe_methods says so; "+
				"set safe_methods in the guard or the defaults: lock or share, or pass if this is meant")
		}
	}
}

// checkRouteKey looks for what a guard's key lacks under one route.
func (c *checker) checkRouteKey(path string, route *routeSection, g *guardSection, id routeID) {
	at, where := member(path, "key"), route.where
	guard := "the guard"
	if route.own == nil {
		at, guard = member(member("guards", route.guard), "key"), fmt.Sprintf("the guard %q", route.guard)
	}
	if g.Key == "" {
		if !c.Failed(at) {
			c.In(where, path, "%s has no key; add one, such as key: order:{param.id}", guard)
		}
		return
	}
	t, _ := g.template()
	if t == nil || id.pattern == "" {
		return // reported already
	}
	has := httplock.PatternParams(id.pattern)
	for _, name := range t.params {
		if !slices.Contains(has, name) {
			c.In(where, path, "the key of %s reads {param.%s}, which the pattern does not have%s", guard, strictyaml.Clip(name), strictyaml.Suggest(name, has))
		}
	}
}

// inOrder yields the names of a mapping by where the file has them, so that the second of two is the one that is
// wrong, until there are enough problems.
func inOrder[T any](c *checker, path string, of map[string]T) iter.Seq[string] {
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		x, y := c.Places()[member(path, a)], c.Places()[member(path, b)]
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
	})
	return func(yield func(string) bool) {
		for _, name := range names {
			if c.Full() || !yield(name) {
				return
			}
		}
	}
}
