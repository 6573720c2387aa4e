package config

import (
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Connect opens the Redis of a file, for an operator's tool, and tells the prefix. It is about the sections redis and prefix
// alone: what is wrong elsewhere does not matter to it, such as a variable that is set only where the service
// runs. Its error is that of Parse, which has name and data as this. It does not talk to Redis. The client is the caller's to close.
func Connect(name string, data []byte) (rdb redis.UniversalClient, prefix string, err error) {
	f := &File{name: name}
	found, readable := strictyaml.Decode(data, &f.spec, environ())
	f.places = found.Places()
	r := &report{found, f}
	s := &f.spec.Redis
	if readable {
		c := checker{r, nil}
		c.checkRedis(s)
		if !s.given() && !r.Failed("redis") {
			r.At("redis", "no Redis is given; set redis.url or redis.addresses")
		}
	}
	ours := f.report()
	for _, p := range r.Problems() {
		if section, _, _ := strings.Cut(p.Path, "."); !readable || section == "redis" || section == "prefix" {
			ours.In(p.Place, p.Path, "%s", p.Message)
		}
	}
	if err := ours.err(); err != nil {
		return nil, "", err
	}
	rdb = ours.connect(s, slog.Default)
	if err := ours.err(); err != nil {
		return nil, "", err
	}
	return rdb, f.prefix(), nil
}
