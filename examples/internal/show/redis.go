package show

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/test/embedded"
)

// Connect opens the Redis at url, which must answer, or one inside this process if it is empty.
func Connect(url string) (rdb *redis.Client, closeAll func(), err error) {
	if url != "" {
		opt, err := redis.ParseURL(url)
		if err != nil { // which can have the password in it
			return nil, nil, errors.New("-redis: want a URL such as redis://localhost:6379")
		}
		rdb = redis.NewClient(opt)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("-redis: no answer from %s: %w", opt.Addr, err), rdb.Close())
		}
		return rdb, func() { _ = rdb.Close() }, nil
	}
	server, err := embedded.Start()
	if err != nil {
		return nil, nil, err
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() { _ = rdb.Close(); server.Close() }, nil
}
