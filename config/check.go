package config

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// check looks for what single values do not show.
func (d *decoder) check() {
	p, err := newProbe()
	if err != nil {
		d.at("", "%v", err) // only if the packages disagree
		return
	}
	defer p.close()
	says := &d.file.says
	if says.Prefix != "" {
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithPrefix(says.Prefix)); err != nil {
			d.at("prefix", "%s", reason(err))
		}
	}
	if says.Service != "" {
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithService(says.Service)); err != nil {
			d.at("service", "%s", reason(err))
		}
	}
	d.checkRedis(&says.Redis)
	for _, name := range slices.Sorted(maps.Keys(says.Queues)) {
		d.checkQueue(p, name, says.Queues[name])
	}
	queues := slices.Sorted(maps.Keys(says.Queues))
	d.checkChain(says.Defaults.OnConflict, queues)
	d.checkHTTP(p, "defaults", &says.Defaults.HTTP)
	for _, name := range slices.Sorted(maps.Keys(says.Guards)) {
		if name == "" {
			d.at(member("guards", name), "the name is empty")
		}
		d.checkGuard(p, member("guards", name), says.Guards[name], queues)
	}
	d.checkRoutes(p, queues)
	d.checkTasks(queues)
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

func (d *decoder) checkQueue(p *probe, name string, q *queueSection) {
	path := member("queues", name)
	if _, err := delayqueue.New(p.rdb, name); err != nil {
		d.at(path, "the name is not allowed; want 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	if _, err := delayqueue.New(p.rdb, "probe", q.bounds()...); err != nil {
		d.at(path, "the bounds do not fit: a payload of max_payload has to fit into max_bytes, max_bytes_per_key and max_bytes_per_principal, with a quarter and 4KiB more")
	}
	if w := q.Worker; w.initial() > w.most() {
		d.at(member(path, "worker"), "retry_initial, %s, is longer than retry_max, %s", w.initial(), w.most())
	}
	if q.Encryption != nil {
		d.checkEncryption(p, member(path, "encryption"), q.Encryption)
	}
}

func (d *decoder) checkEncryption(p *probe, path string, e *encryptionSection) {
	keys := member(path, "keys")
	if len(e.Keys) == 0 && !d.failed(keys) {
		d.at(path, "has no keys; want one at least, such as keys: {k1: {env: NAME}}")
	}
	if current := member(path, "current"); e.Current == "" {
		if !d.failed(current) {
			d.at(path, "has no field current; want the id of the key that seals")
		}
	} else if len(e.Keys) > 0 {
		d.known(current, "key", e.Current, slices.Collect(maps.Keys(e.Keys)))
	}
	for _, id := range slices.Sorted(maps.Keys(e.Keys)) {
		k, at := e.Keys[id], member(keys, id)
		ring := delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: []byte("thirty-two bytes that do not lie")}}
		if _, err := delayqueue.New(p.rdb, "probe", delayqueue.WithEncryption(ring)); err != nil {
			d.at(at, "the id is not allowed; want 1 to 32 letters, digits, dots, underscores and hyphens")
		}
		switch {
		case d.failed(at):
		case (k.Env == "") == (k.File == ""):
			d.at(at, "want either env or file")
		case k.Env != "" && !variableName.MatchString(k.Env): // perhaps the key itself
			d.at(member(at, "env"), "the value is no name of an environment variable; want one such as ORDERS_KEY, and the key in it")
		case k.Env != "":
			text, ok := d.env[k.Env]
			if !ok {
				d.at(member(at, "env"), "the environment variable %s is not set", clip(k.Env))
				continue
			}
			k.value = secret{text: &text}
			if _, err := encryptionKey(text); err != nil {
				d.at(member(at, "env"), "%v", err)
			}
		}
	}
}

func (d *decoder) checkGuard(p *probe, path string, g *guardSection, queues []string) {
	d.checkLease(path, &g.leaseSection, queues)
	d.checkHTTP(p, path, &g.HTTP)
	d.checkSender(path, g)
	d.checkIdempotency(p, path, g)
	d.checkKey(p, path, g)
}

// checkSender looks for guards that need to know who sends a request.
func (d *decoder) checkSender(path string, g *guardSection) {
	defaults := &d.file.says.Defaults.HTTP
	principal, anonymous := g.sender(defaults)
	meets := d.meetsRequests(g)
	if meets && d.file.conflicts(&g.leaseSection).parks() && !d.knowsSender(path, g) {
		at := path
		if g.OnConflict != nil {
			at = member(path, "on_conflict")
		}
		d.at(at, "requests are parked, and nothing says on whose behalf; want principal: NAME, or anonymous: true if the route does not look at "+
			"who sends them, here or in the defaults")
	}
	switch at := member(path, "max_waiters_per_principal"); {
	case principal != "" || d.failed(at) || d.failed(member(path, "principal")) || d.failed("defaults.principal"):
	case g.HTTP.MaxWaiters > 0:
		d.at(at, "needs to know who sends a request; want principal: NAME too, here or in the defaults")
	case defaults.MaxWaiters > 0 && meets && !anonymous:
		d.at(path, "max_waiters_per_principal needs to know who sends a request; want principal: NAME too, here or in the defaults, or anonymous: true")
	}
}

// knowsSender reports whether it is said who sends a guard's requests, or that it does not matter, or would have been if
// that were right.
func (d *decoder) knowsSender(path string, g *guardSection) bool {
	principal, anonymous := g.sender(&d.file.says.Defaults.HTTP)
	for _, section := range []string{path, "defaults"} {
		if d.failed(member(section, "principal")) || d.failed(member(section, "anonymous")) {
			return true
		}
	}
	return principal != "" || anonymous
}

// meetsRequests reports whether a route has the guard.
func (d *decoder) meetsRequests(g *guardSection) bool {
	for _, route := range d.file.says.Routes {
		if route.own == g || d.file.says.Guards[route.guard] == g {
			return true
		}
	}
	return false
}

func (d *decoder) checkLease(path string, g *leaseSection, queues []string) {
	if g.FixedLease > 0 && g.TTL > 0 {
		d.at(member(path, "fixed_lease"), "excludes ttl: a fixed lease is not renewed; want one of the two")
	}
	if g.FixedLease > 0 && g.MaxHold > 0 {
		d.at(member(path, "fixed_lease"), "excludes max_hold: a fixed lease ends by itself; want one of the two")
	}
	if w, at := g.WaitReplicas, member(path, "wait_replicas"); w != nil && !d.failed(at) && (w.Count == 0 || w.Timeout == 0) {
		d.at(at, "want count and timeout, both")
	}
	d.checkChain(g.OnConflict, queues)
}

func (d *decoder) checkHTTP(p *probe, path string, h *httpSection) {
	d.checkWaitingBytes(p, path, h)
	if h.Principal != "" && h.Anonymous {
		d.at(member(path, "anonymous"), "excludes principal; want one of the two")
	}
	if h.StatusPath != "" {
		if err := p.takes(httplock.WithStatusPath(h.StatusPath)); err != nil {
			d.at(member(path, "status_path"), "%s, such as /tickets/", reason(err))
		}
	}
	for i, name := range h.AllowHeaders {
		at := item(member(path, "allow_headers"), i)
		if err := p.takes(httplock.AllowHeaders(name)); err != nil && !d.failed(at) {
			d.at(at, "%s", reason(err))
		}
	}
	stored := slices.Concat(d.file.says.Defaults.HTTP.AllowHeaders, h.AllowHeaders)
	for i, name := range h.Credentials {
		at := item(member(path, "credential_headers"), i)
		if d.failed(at) {
			continue
		}
		if err := p.takes(httplock.WithCredentialHeaders(name)); err != nil {
			d.at(at, "%s", reason(err))
		} else if slices.ContainsFunc(stored, func(other string) bool { return strings.EqualFold(other, name) }) {
			d.at(at, "the header is in allow_headers too, and one that carries credentials is never stored; want it in one of the two")
		}
	}
}

// checkWaitingBytes looks for a bound on bodies that the longest one does not fit into.
func (d *decoder) checkWaitingBytes(p *probe, path string, h *httpSection) {
	if h.WaitingBytes == 0 && h.MaxBody == 0 && h.ReadAhead == 0 {
		return // as in the defaults
	}
	defaults := &d.file.says.Defaults.HTTP
	opts := option(nil, int64(cmp.Or(h.MaxBody, defaults.MaxBody)), httplock.WithMaxBody)
	opts = option(opts, int64(cmp.Or(h.ReadAhead, defaults.ReadAhead)), httplock.WithReadAhead)
	opts = option(opts, int64(cmp.Or(h.WaitingBytes, defaults.WaitingBytes)), httplock.WithMaxWaitingBytes)
	if err := p.takes(opts...); err != nil {
		d.at(path, "max_waiting_bytes is too small: want more than max_body and read_ahead")
	}
}
