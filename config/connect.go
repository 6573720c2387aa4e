package config

import (
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Connect returns a client of the Redis that a file names, and the file's prefix, for an operator's
// tool. It does not talk to Redis. It reads only the sections redis and prefix: mistakes elsewhere
// do not matter, such as a variable that is set only where the service runs. Its arguments and its
// error are those of Parse. The caller closes the client.
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
