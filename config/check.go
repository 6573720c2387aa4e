package config

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// checker looks for what single values of a file do not show.
type checker struct {
	*report
	env map[string]string
}

func (c *checker) check() {
	p, err := newProbe()
	if err != nil {
		c.At("", "%v", err) // only if the packages disagree
		return
	}
	defer p.close()
	spec := &c.file.spec
	if spec.Prefix != "" {
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithPrefix(spec.Prefix)); err != nil {
			c.At("prefix", "%s", reason(err))
		}
	}
	if spec.Service != "" {
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithService(spec.Service)); err != nil {
			c.At("service", "%s", reason(err))
		}
	}
	c.checkRedis(&spec.Redis)
	for name := range inOrder(c, "queues", spec.Queues) {
		c.checkQueue(p, name, spec.Queues[name])
	}
	if e := spec.Idempotency.Encryption; e != nil {
		c.checkEncryption(p, recordsEncryption, e)
	}
	queues := slices.Sorted(maps.Keys(spec.Queues))
	c.checkChain(spec.Defaults.OnConflict, queues)
	c.checkHTTP(p, "defaults", &spec.Defaults.HTTP)
	for name := range inOrder(c, "guards", spec.Guards) {
		if name == "" {
			c.At(member("guards", name), "the name is empty")
		}
		c.checkGuard(p, member("guards", name), spec.Guards[name], queues)
	}
	c.checkRoutes(p, queues)
	c.checkTasks(queues)
	c.checkUnguard()
}

// probe is what the packages need to say whether they take an option. It does not
// talk to its Redis.
type probe struct {
	rdb    *redis.Client
	locker *core.Locker
	guard  *core.Guard
	store  *idempotency.Store
}

func newProbe() (*probe, error) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	locker, err := core.New(rdb)
	if err != nil {
		return nil, err
	}
	store, err := idempotency.New(rdb)
	if err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	return &probe{rdb, locker, locker.Guard(core.RejectConflicts), store}, nil
}

func (p *probe) close() {
	_ = p.locker.Close()
	_ = p.rdb.Close()
}

// takes returns why HTTP middleware does not take the options.
func (p *probe) takes(opts ...httplock.Option) error {
	_, err := httplock.New(p.guard, opts...)
	return err
}

func (c *checker) checkQueue(p *probe, name string, q *queueSection) {
	path := member("queues", name)
	if _, err := delayqueue.New(p.rdb, name); err != nil {
		c.At(path, "the name is not allowed; expected 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	if _, err := delayqueue.New(p.rdb, "probe", q.bounds()...); err != nil {
		c.At(path, "max_payload is too large: max_bytes, max_bytes_per_key and max_bytes_per_principal must exceed it by a quarter and 4KiB")
	}
	if w := q.Worker; w.initial() > w.most() {
		c.At(member(path, "worker"), "retry_initial, %s, is longer than retry_max, %s", w.initial(), w.most())
	}
	if lasts, lease := cmp.Or(q.Retention, time.Hour), cmp.Or(q.Worker.ClaimLease, 30*time.Second); lasts <= 2*lease {
		c.At(member(path, "retention"), "%s is too short; expected more than twice the worker's claim_lease, %s", lasts, lease)
	}
	if q.Encryption != nil {
		c.checkEncryption(p, member(path, "encryption"), q.Encryption)
	}
}

func (c *checker) checkEncryption(p *probe, path string, e *encryptionSection) {
	keys := member(path, "keys")
	if e.Current == "" && !e.AcceptUnsealed {
		c.At(path, "missing field \"current\"")
	}
	if _, ok := e.Keys[e.Current]; !ok && e.Current != "" && len(e.Keys) > 0 {
		c.At(member(path, "current"), "unknown key id; expected %s", strictyaml.Either(slices.Sorted(maps.Keys(e.Keys))))
	}
	for _, id := range slices.Sorted(maps.Keys(e.Keys)) {
		k, at := e.Keys[id], member(keys, id)
		ring := delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: []byte("thirty-two bytes that do not lie")}}
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithEncryption(ring)); err != nil {
			c.At(at, "the id is not allowed; expected 1 to 32 letters, digits, dots, underscores and hyphens")
		}
		switch {
		case c.Failed(at):
		case k.Env == "" && k.File == "":
			c.At(at, "missing field \"env\" or \"file\"")
		case k.Env != "" && !strictyaml.IsVariable(k.Env): // perhaps the key itself
			c.At(member(at, "env"), "expected the name of an environment variable that holds the key, such as ORDERS_KEY")
		case k.Env != "":
			text := c.env[k.Env]
			if text == "" {
				c.At(member(at, "env"), "%s", strictyaml.NotSet(k.Env))
				continue
			}
			k.value = strictyaml.NewSecret(text)
			if _, err := encryptionKey(text); err != nil {
				c.At(member(at, "env"), "%v", err)
			}
		}
	}
}

func (c *checker) checkGuard(p *probe, path string, g *guardSection, queues []string) {
	c.checkChain(g.OnConflict, queues)
	c.checkHTTP(p, path, &g.HTTP)
	c.checkSender(path, g)
	c.checkIdempotency(p, path, g)
	c.checkKey(p, path, g)
}

// checkSender looks for guards that need to know who sends a request.
func (c *checker) checkSender(path string, g *guardSection) {
	defaults := &c.file.spec.Defaults.HTTP
	principal, anonymous := g.sender(defaults)
	meets := c.meetsRequests(g)
	if meets && c.file.conflicts(&g.leaseSection).parks() && !c.knowsSender(path, g) {
		at := path
		if g.OnConflict != nil {
			at = member(path, "on_conflict")
		}
		c.At(at, "requests are parked, but nothing says on whose behalf; add principal: NAME, or anonymous: true if the route does not look at "+
			"who sends them, here or in the defaults")
	}
	switch at := member(path, "max_waiters_per_principal"); {
	case principal != "" || c.Failed(at) || c.Failed(member(path, "principal")) || c.Failed("defaults.principal"):
	case g.HTTP.MaxWaiters > 0:
		c.At(at, "needs principal: NAME, here or in the defaults")
	case defaults.MaxWaiters > 0 && meets && !anonymous:
		c.At(path, "max_waiters_per_principal needs principal: NAME, here or in the defaults, or anonymous: true")
	}
}

// knowsSender reports whether it is said who sends a guard's requests, or that it does not matter, or would have been if
// that were right.
func (c *checker) knowsSender(path string, g *guardSection) bool {
	principal, anonymous := g.sender(&c.file.spec.Defaults.HTTP)
	for _, section := range []string{path, "defaults"} {
		if c.Failed(member(section, "principal")) || c.Failed(member(section, "anonymous")) {
			return true
		}
	}
	return principal != "" || anonymous
}

// meetsRequests reports whether a route has the guard.
func (c *checker) meetsRequests(g *guardSection) bool {
	for _, route := range c.file.spec.Routes {
		if route.own == g || c.file.spec.Guards[route.guard] == g {
			return true
		}
	}
	return false
}

func (c *checker) checkHTTP(p *probe, path string, h *httpSection) {
	c.checkWaitingBytes(p, path, h)
	if h.StatusPath != "" {
		if err := p.takes(httplock.WithStatusPath(h.StatusPath)); err != nil {
			c.At(member(path, "status_path"), "%s, such as /tickets/", reason(err))
		}
	}
	for i, name := range h.AllowHeaders {
		at := item(member(path, "allow_headers"), i)
		if err := p.takes(httplock.WithAllowedHeaders(name)); err != nil && !c.Failed(at) {
			c.At(at, "%s", reason(err))
		}
	}
	stored := slices.Concat(c.file.spec.Defaults.HTTP.AllowHeaders, h.AllowHeaders)
	for i, name := range h.Credentials {
		at := item(member(path, "credential_headers"), i)
		if c.Failed(at) {
			continue
		}
		if err := p.takes(httplock.WithCredentialHeaders(name)); err != nil {
			c.At(at, "%s", reason(err))
		} else if slices.ContainsFunc(stored, func(other string) bool { return strings.EqualFold(other, name) }) {
			c.At(at, "the header is in allow_headers too, but one that carries credentials is never stored; remove it from one of the two")
		}
	}
}

// checkWaitingBytes looks for a bound on bodies that the longest one does not fit into.
func (c *checker) checkWaitingBytes(p *probe, path string, h *httpSection) {
	if h.WaitingBytes == 0 && h.MaxBody == 0 && h.ReadAhead == 0 {
		return // as in the defaults
	}
	defaults := &c.file.spec.Defaults.HTTP
	opts := option(nil, int64(cmp.Or(h.MaxBody, defaults.MaxBody)), httplock.WithMaxBody)
	opts = option(opts, int64(cmp.Or(h.ReadAhead, defaults.ReadAhead)), httplock.WithReadAhead)
	opts = option(opts, int64(cmp.Or(h.WaitingBytes, defaults.WaitingBytes)), httplock.WithMaxWaitingBytes)
	if err := p.takes(opts...); err != nil {
		c.At(path, "max_waiting_bytes is too small; expected more than max_body and read_ahead")
	}
}
