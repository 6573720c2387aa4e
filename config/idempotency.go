package config

import (
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// ownKey is the key of guards whose requests exclude only those with the same
// Idempotency-Key.
const ownKey = "{idempotency_key}"

// checkIdempotency looks for what a guard cannot have together with idempotency.
func (d *decoder) checkIdempotency(p *probe, path string, g *guardSection) {
	s, at := g.Idempotency, member(path, "idempotency")
	if s == nil {
		if at := member(path, "key"); g.Key == ownKey && !d.failed(member(path, "idempotency")) {
			d.at(at, "the key is the request's Idempotency-Key, which the guard does not look at; want idempotency: {required: true} beside it")
		}
		return
	}
	if g.AtOnce > 1 {
		d.at(at, "excludes at_once, with which the same request could run twice at a time; want one of the two")
	}
	if g.StreamBody {
		d.at(at, "excludes stream_body: the body is a part of what is compared; want one of the two")
	}
	if !d.knowsSender(path, g) {
		d.at(at, "responses are kept, and nothing says whose they are; want principal: NAME, or anonymous: true if all clients may see them, "+
			"here or in the defaults")
	}
	for i, name := range s.KeepHeaders {
		at := item(member(at, "keep_headers"), i)
		if err := p.takes(httplock.Anonymous(), httplock.WithIdempotency(p.store, httplock.KeepResponseHeaders(name))); err != nil && !d.failed(at) {
			d.at(at, "%s", reason(err))
		}
	}
}

// idempotency makes the option of a guard that looks at Idempotency-Key.
func (c *compiler) idempotency(path string, s *idempotencySection) httplock.Option {
	store, err := idempotency.New(c.runtime.rdb, option([]idempotency.Option{idempotency.WithPrefix(c.file.prefix())}, s.TTL, idempotency.WithTTL)...)
	if err != nil {
		c.at(path, "%s", reason(err))
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
