package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"
)

// tells ID VERSION AHEAD: a process tells of itself, by a clock that is ahead. It stays for a minute.
func tells(ts *testscript.TestScript, _ bool, args []string) {
	b, ctx := of(ts), context.Background()
	ahead, err := time.ParseDuration(args[2])
	ts.Check(err)
	now, err := b.rdb.Time(ctx).Result()
	ts.Check(err)
	id, fleet := unquote(ts, args[0]), b.prefix+":ops:{fleet}:process"
	entry, err := json.Marshal(map[string]any{
		"id": id, "ttl": time.Minute.Milliseconds(), "at": now.Add(ahead).UnixMilli(), "host": id, "pid": 7, "version": unquote(ts, args[1]),
	})
	ts.Check(err)
	ts.Check(b.rdb.Set(ctx, fleet+":"+id, entry, time.Minute).Err())
	ts.Check(b.rdb.ZAdd(ctx, fleet+"es", redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: id}).Err())
}
