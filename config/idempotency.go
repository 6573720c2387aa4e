package config

import (
	"slices"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// ownKey is the key of guards whose requests exclude only those with the same
// Idempotency-Key.
const ownKey = "{idempotency_key}"

// recordsEncryption is where the keys of responses are.
const recordsEncryption = "idempotency.encryption"

// checkIdempotency looks for what a guard cannot have together with idempotency.
func (c *checker) checkIdempotency(p *probe, path string, g *guardSection) {
	s, at := g.Idempotency, member(path, "idempotency")
	if s == nil {
		if at := member(path, "key"); g.Key == ownKey && !c.Failed(member(path, "idempotency")) {
			c.At(at, "the key is the request's Idempotency-Key, which the guard does not read; add idempotency: {required: true}")
		}
		return
	}
	if g.AtOnce > 1 {
		c.At(at, "excludes at_once, which lets the same request run twice at a time; give one of the two")
	}
	if g.StreamBody {
		c.At(at, "excludes stream_body: the body is a part of what is compared; give one of the two")
	}
	if !c.knowsSender(path, g) {
		c.At(at, "responses are kept, but nothing says whose they are; add principal: NAME, or anonymous: true if all clients may see them, "+
			"here or in the defaults")
	}
	for i, name := range s.KeepHeaders {
		at := item(member(at, "keep_headers"), i)
		if err := p.takes(httplock.WithAnonymous(), httplock.WithIdempotency(p.store, httplock.KeepResponseHeaders(name))); err != nil && !c.Failed(at) {
			c.At(at, "%s", reason(err))
		}
	}
}

// idempotency makes the option of a guard that looks at Idempotency-Key.
func (c *compiler) idempotency(path string, s *idempotencySection) httplock.Option {
	stores := append(slices.Clone(c.runtime.options.records), idempotency.WithPrefix(c.runtime.locker.Prefix()))
	stores = option(stores, s.TTL, idempotency.WithTTL)
	if c.file.spec.Idempotency.Encryption != nil {
		stores = append(stores, idempotency.WithEncryption(c.keys))
	}
	store, err := idempotency.New(c.runtime.rdb, stores...)
	if err != nil {
		c.At(path, "%s", reason(err))
		return func(*httplock.Middleware) error { return nil }
	}
	opts := []httplock.IdempotencyOption{httplock.KeepResponseHeaders(s.KeepHeaders...)}
	if s.Required {
		opts = append(opts, httplock.RequireIdempotencyKey())
	}
	if s.KeepBody != nil {
		opts = append(opts, httplock.KeepResponseBody(int(*s.KeepBody)))
	}
	return httplock.WithIdempotency(store, opts...)
}
