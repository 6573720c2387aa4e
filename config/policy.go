package config

import (
	"reflect"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/retry"
)

var policies = []string{"reject", "retry", "delay"}

// decode reads one policy or a list of them. A policy is a mapping, or only its name.
func (c *chain) decode(d *decoder, node ast.Node, path string, _ place) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		c.add(d, node, path)
		return
	}
	if len(list.Values) == 0 {
		d.at(path, "is empty; want one policy at least: %s", either(policies))
	}
	for i, n := range list.Values {
		at := item(path, i)
		d.file.places[at] = startOf(n)
		if d.usable(n, at) {
			c.add(d, n, at)
		}
	}
}

func (c *chain) add(d *decoder, node ast.Node, path string) {
	if isScalar(node) {
		s, _ := d.scalar(node, path)
		if policy := newPolicy(s.text); s.kind != isString {
			d.at(path, "%s is no policy; want %s", s.show(), either(policies))
		} else if policy == nil {
			d.at(path, "%s is unknown%s", s.show(), suggest(s.text, policies))
		} else {
			*c = append(*c, step{path, policy})
		}
		return
	}
	name, ok := d.policyName(node, path)
	if !ok {
		return
	}
	policy := newPolicy(name)
	if policy != nil {
		*c = append(*c, step{path, policy})
	} else if policy = newPolicy(nearest(name, policies)); policy == nil {
		d.at(member(path, "policy"), "%s is unknown%s", scalar{text: name}.show(), suggest(name, policies))
		return
	}
	d.section(node, path, reflect.ValueOf(policy).Elem()) // says so, if the name is wrong
}

// newPolicy makes the policy of this name, or nil.
func newPolicy(name string) any {
	switch name {
	case "reject":
		return &rejectPolicy{Policy: name}
	case "retry":
		return &retryPolicy{Policy: name}
	case "delay":
		return &delayPolicy{Policy: name}
	}
	return nil
}

// policyName finds which policy a mapping is: its other fields depend on that.
func (d *decoder) policyName(node ast.Node, path string) (name string, ok bool) {
	found := false
	d.mapping(node, path, func(key string, entry *ast.MappingValueNode) {
		at := member(path, key)
		switch {
		case key == "policy":
			if d.file.places[at] = startOf(entry.Value); d.usable(entry.Value, at) {
				var s scalar
				s, ok = d.scalar(entry.Value, at)
				name = s.text
			}
		case nearest(key, []string{"policy"}) != "":
			d.in(placeOf(entry.Key), at, "there is no such field"+meant("policy"))
		default:
			return
		}
		found = true
	})
	if !found && !d.failed(path) {
		d.at(path, "has no field policy; want %s", either(policies))
	}
	return name, ok
}

// checkChain says which policies cannot follow one another, or lack something.
func (r *report) checkChain(c chain, queues []string) {
	var before string
	for _, s := range c {
		switch p := s.policy.(type) {
		case *retryPolicy:
			if before != "" {
				r.follows(s.path, "retry", before)
			}
			if p.Initial > 0 && p.Max > 0 && p.Initial > p.Max {
				r.at(member(s.path, "initial"), "%s is longer than max, %s", p.Initial, p.Max)
			}
			before = "retry"
		case *delayPolicy:
			if before != "" && before != "retry" {
				r.follows(s.path, "delay", before)
			}
			if at := member(s.path, "queue"); p.Queue != "" {
				r.known(at, "queue", p.Queue, queues)
			} else if !r.failed(at) {
				r.at(s.path, "has no field queue; want one of those under queues")
			}
			r.checkQuiet(s.path, p)
			before = "delay"
		case *rejectPolicy:
			if before == "reject" {
				r.follows(s.path, "reject", before)
			}
			before = "reject"
		}
	}
}

func (r *report) checkQuiet(path string, p *delayPolicy) {
	switch {
	case p.Quiet == 0 && p.MaxDelay == 0, r.failed(member(path, "quiet")), r.failed(member(path, "max_delay")):
	case !p.Coalesce:
		r.at(path, "quiet and max_delay need coalesce: true")
	case p.Quiet == 0 || p.MaxDelay == 0:
		r.at(path, "quiet and max_delay are given together")
	case p.Quiet > p.MaxDelay:
		r.at(member(path, "quiet"), "%s is longer than max_delay, %s", p.Quiet, p.MaxDelay)
	}
}

func (r *report) follows(path, policy, before string) {
	why := "nothing comes after reject"
	switch {
	case policy == before:
		why = "each policy is there once"
	case before == "delay":
		why = "only reject comes after delay"
	}
	r.at(path, "%s cannot come after %s: %s; want retry, delay, reject in this order, of which each may be missing", policy, before, why)
}

// known reports a name that is not among those that the file, or Build, has.
func (r *report) known(path, what, name string, names []string) {
	if slices.Contains(names, name) {
		return
	}
	r.at(path, "there is no %s %q%s", what, clip(name), suggest(name, slices.Sorted(slices.Values(names))))
}

// parks reports whether a chain stores calls.
func (c chain) parks() bool {
	return slices.ContainsFunc(c, func(s step) bool {
		_, ok := s.policy.(*delayPolicy)
		return ok
	})
}

// policy makes the chain. A queue is what queue returns for its name and longest age.
func (c chain) policy(queue func(*delayPolicy) *delayqueue.Queue) core.ConflictPolicy {
	var then core.ConflictPolicy // the last rejects, as nil does
	for _, s := range slices.Backward(c) {
		switch p := s.policy.(type) {
		case *delayPolicy:
			switch q := queue(p); {
			case p.Quiet > 0:
				then = delayqueue.Debounce(q, p.Quiet, p.MaxDelay)
			case p.Coalesce:
				then = delayqueue.Coalesce(q)
			default:
				then = delayqueue.Policy(q)
			}
		case *retryPolicy:
			jitter := retry.FullJitter
			if p.Jitter == "decorrelated" {
				jitter = retry.DecorrelatedJitter
			}
			then = retry.Policy{
				Initial: p.Initial, Max: p.Max, MaxWait: p.MaxWait, MaxAttempts: p.MaxAttempts,
				Jitter: jitter, Then: then,
			}
		}
	}
	return then
}

// decode reads the name of a guard, or a guard.
func (s *routeSection) decode(d *decoder, node ast.Node, path string, _ place) {
	s.where = startOf(node)
	if !isScalar(node) {
		s.own = &guardSection{}
		d.section(node, path, reflect.ValueOf(s.own).Elem())
		return
	}
	s.guard = d.guardName(node, path, s.where)
}

// decode reads the name of a guard, or a guard for tasks.
func (s *taskSection) decode(d *decoder, node ast.Node, path string, _ place) {
	s.where = startOf(node)
	if !isScalar(node) {
		s.own = &leaseSection{}
		d.section(node, path, reflect.ValueOf(s.own).Elem())
		return
	}
	s.guard = d.guardName(node, path, s.where)
}

func (d *decoder) guardName(node ast.Node, path string, where place) string {
	name, _ := d.scalar(node, path)
	if name.kind != isString || name.text == "" {
		d.in(where, path, "is not the name of a guard; want one of those under guards, or a guard")
		return ""
	}
	return name.text
}
