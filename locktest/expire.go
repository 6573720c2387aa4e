package locktest

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/expire.lua
var expireSource string

var expireScript = redis.NewScript(expireSource)

// Expire ends all leases of key in Redis, like those of a process that died a TTL ago. A
// call that waits for the key gets it within 1 to 5 s; a living holder loses its lease at
// its next renewal, at most a third of its TTL later. It fails the test if nobody holds
// the key.
func (r *Redis) Expire(t TB, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	ended, err := expireScript.Run(ctx, r.rdb, []string{r.prefix + ":lock{}:" + key}).Int()
	if err == nil && ended == 0 {
		err = errNotHeld
	}
	if err != nil {
		t.Fatalf("locktest: expire %q: %v", key, err)
	}
}
