package config

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/strictyaml"
	"github.com/perkey-go/perkey/ops"
)

// Option gives Build what a file cannot hold.
type Option func(*options) error

type options struct {
	client     redis.UniversalClient
	locker     []core.Option
	queue      []delayqueue.Option
	http       []httplock.Option
	records    []idempotency.Option
	observer   Observer // nil: nobody is told
	recorder   *ops.Recorder
	log        *slog.Logger
	principals map[string]sender
	skips      map[string]httplock.Option
	values     contextValues
}

// WithClient sets the Redis client, in place of the file's section redis. The caller closes it,
// after the Runtime.
func WithClient(rdb redis.UniversalClient) Option {
	return func(o *options) error {
		if rdb == nil {
			return invalid("WithClient(nil)")
		}
		o.client = rdb
		return nil
	}
}

// WithLocker adds options to the Locker, such as core.WithObserver and
// core.WithMaxWaiters. The prefix and the TTL are the file's.
func WithLocker(opts ...core.Option) Option {
	return func(o *options) error {
		o.locker = append(o.locker, opts...)
		return nil
	}
}

// WithQueue adds options to every Queue, such as delayqueue.WithQueueObserver. Where both set the same,
// the file wins.
func WithQueue(opts ...delayqueue.Option) Option {
	return func(o *options) error {
		o.queue = append(o.queue, opts...)
		return nil
	}
}

// WithHTTP adds options to the middleware of every route, such as httplock.WithObserver. Where both set the same, the file wins.
func WithHTTP(opts ...httplock.Option) Option {
	return func(o *options) error {
		o.http = append(o.http, opts...)
		return nil
	}
}

// WithIdempotency adds options to what remembers requests by their Idempotency-Key, such as idempotency.WithObserver. The file
// counts where both say something.
func WithIdempotency(opts ...idempotency.Option) Option {
	return func(o *options) error {
		o.records = append(o.records, opts...)
		return nil
	}
}

// WithLogger sets where the Runtime, its Locker (core.WithLogger) and the middleware of its routes report what
// goes wrong. Default: slog.Default.
func WithLogger(log *slog.Logger) Option {
	return func(o *options) error {
		if log == nil {
			return invalid("WithLogger(nil)")
		}
		o.log = log
		return nil
	}
}

// WithPrincipal gives what the file calls "principal: name": the functions of httplock.WithPrincipal and
// httplock.WithReauthorize. The second one may be nil where no guard with the principal parks requests.
func WithPrincipal(name string, principal func(*http.Request) (string, error), reauthorize func(r *http.Request, principal string) error) Option {
	return func(o *options) error {
		if principal == nil {
			return invalid("WithPrincipal(%q): the function is nil", name)
		}
		return register("WithPrincipal", o.principals, name, sender{principal, reauthorize})
	}
}

// sender is what WithPrincipal gave.
type sender struct {
	principal   func(*http.Request) (string, error)
	reauthorize func(r *http.Request, principal string) error // nil: none
}

// WithSkip gives what the file calls "skip: name": the function of httplock.WithSkip.
func WithSkip(name string, skip func(*http.Request) bool) Option {
	return func(o *options) error {
		if skip == nil {
			return invalid("WithSkip(%q): the function is nil", name)
		}
		return register("WithSkip", o.skips, name, httplock.WithSkip(skip))
	}
}

// WithValue gives what keys call {ctx.name}: a value that earlier middleware left in
// the request's context, such as the user's id. False: there is none.
func WithValue(name string, value func(context.Context) (string, bool)) Option {
	return func(o *options) error {
		if value == nil {
			return invalid("WithValue(%q): the function is nil", name)
		}
		if strings.ContainsAny(name, "{}|") {
			return invalid("WithValue(%q): expected a name without braces and bars", name)
		}
		return register("WithValue", o.values, name, value)
	}
}

func register[T any](option string, names map[string]T, name string, value T) error {
	if name == "" {
		return invalid("%s: the name is empty", option)
	}
	if _, twice := names[name]; twice {
		return invalid("%s(%q): given twice", option, name)
	}
	names[name] = value
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("config: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// state is what a file says, made.
type state struct {
	file    *File
	version int // 1 is Build's
	queues  map[string]*delayqueue.Queue
	guards  map[string]*core.Guard
	routes  map[routeID]route
	tasks   map[string]task // by what the file has for their types
}

// route is what a request under a route meets.
type route struct {
	httplock.Route

	text      string // in the file
	parks     bool
	principal string   // the name of who requests are parked for, if of anybody
	reads     []string // the headers that make its key
}

// compile makes all that a reload may change. Nil: it cannot be made, and the report says why.
func (rt *Runtime) compile(f *File) (*state, *report) {
	r := f.report()
	s := &state{file: f, version: 1, queues: map[string]*delayqueue.Queue{}, guards: map[string]*core.Guard{}, routes: map[routeID]route{}, tasks: map[string]task{}}
	for name, q := range f.spec.Queues {
		queue, err := rt.queue(f, name, q, nil)
		if err != nil {
			r.At(member("queues", name), "%s", reason(err))
		}
		s.queues[name] = queue
	}
	var keys idempotency.Keyring
	if e := f.spec.Idempotency.Encryption; e != nil {
		keys = r.keyring(recordsEncryption, e)
	}
	if r.Failed("") {
		return nil, r
	}
	c := compiler{report: r, runtime: rt, state: s, keys: keys}
	made := map[*guardSection]route{}
	for _, name := range slices.Sorted(maps.Keys(f.spec.Guards)) {
		g, path := f.spec.Guards[name], member("guards", name)
		s.guards[name] = c.guard(path, &g.leaseSection)
		made[g] = c.route(path, g, s.guards[name])
	}
	for _, text := range slices.Sorted(maps.Keys(f.spec.Routes)) {
		entry, path := f.spec.Routes[text], member("routes", text)
		id, err := parseRoute(text)
		if err != nil {
			r.At(path, "%v", err)
			continue
		}
		m := made[f.spec.Guards[entry.guard]]
		if entry.own != nil {
			m = c.route(path, entry.own, c.guard(path, &entry.own.leaseSection))
		}
		m.text = text
		s.routes[id] = m
	}
	c.tasks()
	if r.Failed("") {
		return nil, r
	}
	return s, r
}

// queue makes a handle on a queue, for a policy or, if that is nil, for others.
func (rt *Runtime) queue(f *File, name string, q *queueSection, p *delayPolicy) (*delayqueue.Queue, error) {
	opts := append(slices.Clone(rt.options.queue), delayqueue.WithPrefix(rt.locker.Prefix()))
	age := q.MaxAge
	if p != nil {
		age = cmp.Or(p.MaxAge, age)
	}
	opts = option(opts, f.spec.Service, delayqueue.WithService)
	opts = option(opts, age, delayqueue.WithMaxAge)
	opts = option(opts, q.MaxDepth, delayqueue.WithMaxDepth)
	opts = option(opts, q.MaxDepthPerKey, delayqueue.WithMaxDepthPerKey)
	opts = append(opts, q.bounds()...)
	opts = option(opts, int(q.MaxResult), delayqueue.WithMaxResult)
	opts = option(opts, q.MaxAttempts, delayqueue.WithMaxAttempts)
	opts = option(opts, q.Retention, delayqueue.WithRetention)
	opts = option(opts, q.DeadRetention, delayqueue.WithDeadRetention)
	opts = option(opts, q.Partitions, delayqueue.WithPartitions)
	opts = option(opts, halts[q.HaltOnDeath], delayqueue.WithHaltOnDeath)
	if q.ReservationWindow != nil {
		opts = append(opts, delayqueue.WithReservationWindow(*q.ReservationWindow))
	}
	if keys, ok := rt.keyrings[name]; ok {
		opts = append(opts, delayqueue.WithEncryption(keys))
	}
	return delayqueue.New(rt.rdb, name, opts...)
}

var halts = map[string]delayqueue.Halt{"parked": delayqueue.HaltParked, "key": delayqueue.HaltKey}

// bounds are those in bytes.
func (q *queueSection) bounds() (opts []delayqueue.Option) {
	opts = option(opts, int(q.MaxPayload), delayqueue.WithMaxPayload)
	opts = option(opts, int64(q.MaxBytes), delayqueue.WithMaxBytes)
	opts = option(opts, int64(q.MaxBytesPerKey), delayqueue.WithMaxBytesPerKey)
	return option(opts, int64(q.MaxBytesPerPrincipal), delayqueue.WithMaxBytesPerPrincipal)
}

// option adds one for a value that was given.
func option[T comparable, O any](opts []O, value T, with func(T) O) []O {
	var none T
	if value == none {
		return opts
	}
	return append(opts, with(value))
}

func (f *File) prefix() string { return cmp.Or(f.spec.Prefix, "perkey") }

// keyring reads keys.
func (r *report) keyring(path string, e *encryptionSection) delayqueue.Keyring {
	keys := delayqueue.Keyring{Current: e.Current, Keys: map[string][]byte{}, AcceptUnsealed: e.AcceptUnsealed}
	for id, k := range e.Keys {
		at, text := member(member(member(path, "keys"), id), "file"), k.value.Reveal()
		if k.File != "" {
			if text = r.readSecret(at, k.File); r.Failed(at) {
				continue
			}
		}
		key, err := encryptionKey(text)
		if err != nil {
			r.At(at, "%v", err)
		}
		keys.Keys[id] = key
	}
	return keys
}

// encryptionKey reads a key from its text.
func encryptionKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) != 32 {
		return nil, errors.New("expected a key of 32 random bytes in base64, as openssl rand -base64 32 makes one")
	}
	return key, nil
}

// compiler makes guards.
type compiler struct {
	*report
	runtime *Runtime
	state   *state
	keys    idempotency.Keyring // of responses that are kept
}

func (c *compiler) guard(path string, g *leaseSection) *core.Guard {
	policy := c.file.conflicts(g).policy(func(p *delayPolicy) *delayqueue.Queue {
		q, err := c.runtime.queue(c.file, p.Queue, c.file.spec.Queues[p.Queue], p)
		if err != nil {
			c.At(path, "%s", reason(err))
		}
		return q
	})
	var opts []core.AcquireOption
	if g.FixedLease > 0 {
		opts = append(opts, core.FixedLease(g.FixedLease))
	} else {
		// Not the Locker's, which a reload leaves as it is.
		opts = append(opts, core.LeaseTTL(cmp.Or(g.TTL, c.file.spec.Defaults.TTL, core.DefaultTTL)))
	}
	opts = option(opts, g.MaxHold, core.MaxHold)
	opts = option(opts, g.MinHold, core.MinHold)
	opts = option(opts, g.AtOnce, core.Counted)
	if w := g.WaitReplicas; w != nil {
		opts = append(opts, core.WaitReplicas(w.Count, w.Timeout))
	}
	guard := c.runtime.locker.Guard(policy, opts...)
	if err := guard.Err(); err != nil {
		c.At(path, "%s", reason(err))
	}
	return guard
}

func (c *compiler) route(path string, g *guardSection, guard *core.Guard) route {
	if guard.Err() != nil {
		return route{} // reported already
	}
	var r route
	o, defaults := c.runtime.options, c.file.spec.Defaults.HTTP
	r.parks = c.file.conflicts(&g.leaseSection).parks()
	opts := slices.Clone(o.http)
	switch cmp.Or(g.HTTP.SafeMethods, defaults.SafeMethods) {
	case "lock":
		opts = append(opts, httplock.WithLockedSafeMethods())
	case "share":
		opts = append(opts, httplock.WithSharedSafeMethods())
	}
	opts = option(opts, int64(cmp.Or(g.HTTP.MaxBody, defaults.MaxBody)), httplock.WithMaxBody)
	opts = option(opts, int64(cmp.Or(g.HTTP.ReadAhead, defaults.ReadAhead)), httplock.WithReadAhead)
	opts = option(opts, cmp.Or(g.HTTP.BodyTimeout, defaults.BodyTimeout), httplock.WithBodyTimeout)
	opts = option(opts, int64(cmp.Or(g.HTTP.WaitingBytes, defaults.WaitingBytes)), httplock.WithMaxWaitingBytes)
	if g.StreamBody {
		opts = append(opts, httplock.WithStreamBody())
	}
	opts = option(opts, cmp.Or(g.HTTP.StatusPath, defaults.StatusPath), httplock.WithStatusPath)
	opts = append(opts, httplock.WithAllowedHeaders(slices.Concat(defaults.AllowHeaders, g.HTTP.AllowHeaders)...),
		httplock.WithCredentialHeaders(slices.Concat(defaults.Credentials, g.HTTP.Credentials)...),
		httplock.WithRetryStatuses(slices.Concat(defaults.RetryStatuses, g.HTTP.RetryStatuses)...))
	if o.log != nil {
		opts = append(opts, httplock.WithLogger(o.log))
	}
	if r.principal, _ = g.sender(&defaults); r.principal != "" {
		opts = append(opts, c.principal(path, g, &r)...)
	} else { // it is meant, or nothing is stored
		opts = append(opts, httplock.WithAnonymous())
	}
	if g.HonorPrefer {
		opts = append(opts, httplock.WithPrefer())
	}
	if g.Idempotency != nil {
		opts = append(opts, c.idempotency(member(path, "idempotency"), g.Idempotency))
	}
	if g.Skip != "" {
		opts = registered(c.report, opts, member(path, "skip"), "WithSkip", g.Skip, o.skips)
	}
	m, err := httplock.New(guard, opts...)
	if err != nil {
		c.At(path, "%s", reason(err))
	}
	r.Middleware = m
	if t, _ := g.template(); t != nil {
		r.Key, r.reads = c.key(member(path, "key"), t, g), t.headers
	}
	return r
}

// sender is the name of who sends the requests of a guard. Anonymous: it does not matter. Neither: nothing is said.
func (g *guardSection) sender(defaults *httpSection) (principal string, anonymous bool) {
	if g.HTTP.Principal != "" || g.HTTP.Anonymous {
		return g.HTTP.Principal, g.HTTP.Anonymous
	}
	return defaults.Principal, defaults.Anonymous
}

// principal makes the options of a guard whose requests have a principal.
func (c *compiler) principal(path string, g *guardSection, r *route) (opts []httplock.Option) {
	at := member(path, "principal")
	if g.HTTP.Principal == "" {
		at = "defaults.principal"
	}
	given, ok := c.runtime.options.principals[r.principal]
	switch {
	case !ok:
		c.unregistered(at, "WithPrincipal", r.principal, slices.Sorted(maps.Keys(c.runtime.options.principals)))
		return []httplock.Option{httplock.WithAnonymous()} // nothing more is wrong with the guard
	case given.reauthorize != nil:
		opts = append(opts, httplock.WithReauthorize(given.reauthorize))
	case r.parks:
		c.At(at, "no function decides whether a principal may still have a parked request run; add a third argument to config.WithPrincipal(%q, …)", strictyaml.Clip(r.principal))
		return []httplock.Option{httplock.WithAnonymous()}
	}
	opts = append(opts, httplock.WithPrincipal(given.principal))
	return option(opts, cmp.Or(g.HTTP.MaxWaiters, c.file.spec.Defaults.HTTP.MaxWaiters), httplock.WithMaxWaitersPerPrincipal)
}

// registered adds what was given to Build under a name.
func registered[T any](r *report, opts []T, path, option, name string, names map[string]T) []T {
	value, ok := names[name]
	if !ok {
		r.unregistered(path, option, name, slices.Sorted(maps.Keys(names)))
		return opts
	}
	return append(opts, value)
}

func (r *report) unregistered(path, option, name string, known []string) {
	r.At(path, "no option of Build has the name %q; expected config.%s(%q, …)%s", strictyaml.Clip(name), option, strictyaml.Clip(name), strictyaml.Meant(strictyaml.Nearest(name, known)))
}
