package config

import (
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/strictyaml"
	"github.com/perkey-go/perkey/retry"
)

var policies = []string{"reject", "retry", "delay"}

// delaying is how the policy delay is written: the word alone names no queue.
const delaying = "{policy: delay, queue: NAME}"

// DecodeYAML reads one policy or a list of them. A policy is a mapping, or only its name.
func (c *chain) DecodeYAML(n strictyaml.Node) {
	items, isList := n.Items()
	switch {
	case !isList:
		c.add(n)
	case len(items) == 0:
		n.Problem("is empty; give at least one policy: reject, retry or %s", delaying)
	}
	for _, item := range items {
		c.add(item)
	}
}

func (c *chain) add(n strictyaml.Node) {
	at := n
	if n.IsMapping() {
		field, ok := n.Field("policy")
		if !ok {
			return
		}
		at = field
	}
	written := func(choice string) string { return choice }
	if !n.IsMapping() {
		written = strings.NewReplacer(`"delay"`, delaying, "or delay", "or "+delaying).Replace
	}
	name, ok := at.Text()
	if !ok {
		at.Problem("expected a policy (%s), got %s", written(strictyaml.Either(policies)), at.Got())
		return
	}
	policy := newPolicy(name)
	switch {
	case name == "delay" && !n.IsMapping():
		at.Problem("delay needs a queue; write %s, with one of those under queues", delaying)
	case policy != nil:
		*c = append(*c, step{n.Path(), policy})
	default:
		at.Problem("unknown value %q%s", strictyaml.Clip(name), written(strictyaml.Suggest(name, policies)))
		policy = newPolicy(strictyaml.Nearest(name, policies)) // its other fields may be wrong too
	}
	if policy != nil && n.IsMapping() {
		n.Decode(policy)
	}
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
				r.At(member(s.path, "initial"), "%s is longer than max, %s", p.Initial, p.Max)
			}
			before = "retry"
		case *delayPolicy:
			if before != "" && before != "retry" {
				r.follows(s.path, "delay", before)
			}
			if at := member(s.path, "queue"); p.Queue != "" {
				r.known(at, "queue", p.Queue, queues)
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
	case p.QuietPeriod == 0 && p.MaxDelay == 0, r.Failed(member(path, "quiet_period")), r.Failed(member(path, "max_delay")):
	case !p.Coalesce:
		r.At(path, "quiet_period and max_delay need coalesce: true")
	case p.QuietPeriod == 0 || p.MaxDelay == 0:
		r.At(path, "quiet_period and max_delay must be given together")
	case p.QuietPeriod > p.MaxDelay:
		r.At(member(path, "quiet_period"), "%s is longer than max_delay, %s", p.QuietPeriod, p.MaxDelay)
	}
}

func (r *report) follows(path, policy, before string) {
	why := "nothing follows reject"
	switch {
	case policy == before:
		why = "each policy is given once"
	case before == "delay":
		why = "only reject follows delay"
	}
	r.At(path, "%s cannot come after %s: %s; the order is retry, delay, reject, and each may be left out", policy, before, why)
}

// known reports a name that is not among those that the file, or Build, has.
func (r *report) known(path, what, name string, names []string) {
	if slices.Contains(names, name) {
		return
	}
	r.At(path, "unknown %s %q%s", what, strictyaml.Clip(name), strictyaml.Suggest(name, slices.Sorted(slices.Values(names))))
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
			case p.QuietPeriod > 0:
				then = delayqueue.Debounce(q, p.QuietPeriod, p.MaxDelay)
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

// DecodeYAML reads the name of a guard, or a guard.
func (g *named[T]) DecodeYAML(n strictyaml.Node) {
	g.where = n.Start()
	if n.IsMapping() {
		g.own = new(T)
		n.Decode(g.own)
		return
	}
	var ok bool
	if g.guard, ok = n.Text(); !ok || g.guard == "" {
		n.Problem("expected the name of a guard, or a guard, got %s", n.Got())
	}
}
