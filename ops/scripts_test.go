package ops_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
)

// caller calls scripts, which may be broken.
type caller struct {
	rdb     *redis.Client
	prefix  string
	scripts map[string]string
}

func (c caller) key(name string) string { return c.prefix + ":ops:{fleet}:" + name }

func (c caller) call(name string, keys []string, args ...any) ([]any, error) {
	for i, key := range keys {
		keys[i] = c.key(key)
	}
	reply, err := c.rdb.Eval(context.Background(), c.scripts[name], keys, args...).Result()
	list, _ := reply.([]any)
	if n, ok := reply.(int64); ok {
		list = []any{n}
	}
	return list, err
}

func (c caller) tell(id string, ttl int) ([]any, error) {
	return c.call("beacon", []string{"process:" + id, "processes", "watches"}, id, ttl, "entry of "+id)
}

func (c caller) watch(name string, ttl int) ([]any, error) {
	return c.call("watch", []string{"watches"}, name, ttl, 3)
}

// holds reports what the scripts do not do, or the first error.
// It is long since each check begins with what those before it have left.
func (c caller) holds() error {
	var wrong []error
	ctx := context.Background()
	must := func(ok bool, what string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(what, args...))
		}
	}
	score := func(key, member string) time.Duration {
		now, err := c.rdb.Time(ctx).Result()
		must(err == nil, "%v", err)
		return time.UnixMilli(int64(c.rdb.ZScore(ctx, c.key(key), member).Val())).Sub(now)
	}
	near := func(d, want time.Duration) bool { return d > want-5*time.Second && d <= want+time.Millisecond }
	past, late := float64(time.Now().Add(-time.Hour).UnixMilli()), float64(time.Now().Add(time.Hour).UnixMilli())
	must(c.rdb.ZAdd(ctx, c.key("processes"), redis.Z{Score: past, Member: "gone"}).Err() == nil, "zadd")
	must(c.rdb.ZAdd(ctx, c.key("watches"), redis.Z{Score: past, Member: "over"}).Err() == nil, "zadd")

	for i, id := range []string{"a", "b", "c"} {
		reply, err := c.tell(id, 10_000*(i+1))
		must(err == nil && len(reply) == 0, "tell: %v, %v", reply, err)
		must(c.rdb.Get(ctx, c.key("process:"+id)).Val() == "entry of "+id, "the entry of %s", id)
		must(near(c.rdb.PTTL(ctx, c.key("process:"+id)).Val(), time.Duration(i+1)*10*time.Second), "the entry of %s expires", id)
		must(near(score("processes", id), time.Duration(i+1)*10*time.Second), "%s in the index", id)
	}
	must(c.rdb.PTTL(ctx, c.key("processes")).Val() > time.Minute*7/2, "the index outlives every entry, and expires")
	must(errors.Is(c.rdb.ZScore(ctx, c.key("processes"), "gone").Err(), redis.Nil), "what is gone is removed")

	must(c.rdb.ZAdd(ctx, c.key("processes"), redis.Z{Score: past, Member: "gone"}).Err() == nil, "zadd")
	reply, err := c.call("fleet", []string{"processes"}, 2)
	must(err == nil && len(reply) == 6, "fleet: %v, %v", reply, err)
	if len(reply) == 6 {
		now, _ := reply[0].(int64)
		must(time.Since(time.UnixMilli(now)).Abs() < time.Minute, "its clock")
		must(reply[1] == int64(3), "how many: %v", reply[1])
		must(reply[2] == "c" && reply[4] == "b", "those that told last: %v", reply)
		gone, _ := strconv.ParseFloat(fmt.Sprint(reply[3]), 64)
		must(near(time.Duration(int64(gone)-now)*time.Millisecond, 30*time.Second), "when it is gone: %v", reply[3])
	}
	reply, err = c.call("fleet", []string{"processes"}, 10)
	must(err == nil && len(reply) == 8, "without those that are gone: %v, %v", reply, err)
	_, err = c.call("withdraw", []string{"process:b", "processes"}, "b")
	must(err == nil && c.rdb.Exists(ctx, c.key("process:b")).Val() == 0 && errors.Is(c.rdb.ZScore(ctx, c.key("processes"), "b").Err(), redis.Nil), "b is gone")

	for i, want := range []int64{1, 1, 1, 0} {
		reply, err := c.watch(fmt.Sprint("w", i), 60_000*(3-i))
		must(err == nil && len(reply) == 1 && reply[0] == want, "watch %d: %v, %v", i, reply, err)
	}
	must(near(c.rdb.PTTL(ctx, c.key("watches")).Val(), 3*time.Minute), "the longest decides")
	reply, err = c.watch("w0", 180_000)
	must(err == nil && len(reply) == 1 && reply[0] == int64(1), "the same once more: %v, %v", reply, err)
	must(near(score("watches", "w1"), 2*time.Minute), "a watch ends")
	must(c.rdb.ZAdd(ctx, c.key("watches"), redis.Z{Score: past, Member: "over"}).Err() == nil, "zadd")
	reply, err = c.tell("a", 10_000)
	must(err == nil && len(reply) == 6, "what is watched: %v, %v", reply, err)
	for i := 0; i+1 < len(reply); i += 2 {
		left, _ := reply[i+1].(int64)
		must(left > 30_000 && left <= 180_000, "for how long: %v", reply)
	}
	for i := range 30 {
		must(c.rdb.ZAdd(ctx, c.key("watches"), redis.Z{Score: late, Member: fmt.Sprint("many", i)}).Err() == nil, "zadd")
	}
	reply, err = c.tell("a", 10_000)
	must(err == nil && len(reply) == 32, "16 are told: %d, %v", len(reply)/2, err)
	return errors.Join(wrong...)
}

func TestScripts_KeepWhatIsTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.NoError(t, caller{env.Client(t), env.Prefix, ops.Scripts()}.holds())
	})
}

func TestScripts_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range []struct{ script, old, broken string }{
		{"beacon", ", 'PX', ARGV[2])", ")"},
		{"beacon", "redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)\n", ""},
		{"beacon", "now + ARGV[2], ARGV[1]", "now, ARGV[1]"},
		{"beacon", "redis.call('PEXPIRE', KEYS[2], INDEX)\n", ""},
		{"beacon", "'(' .. now", "'-inf'"},
		{"beacon", ", 'LIMIT', 0, WATCHES)", ")"},
		{"beacon", "watches[i] - now", "watches[i]"},
		{"withdraw", "redis.call('DEL', KEYS[1])\n", ""},
		{"withdraw", "redis.call('ZREM', KEYS[2], ARGV[1])", "0"},
		{"fleet", "'+inf', '(' .. now, 'WITHSCORES'", "'+inf', '-inf', 'WITHSCORES'"},
		{"fleet", "'ZREVRANGEBYSCORE', KEYS[1], '+inf', '(' .. now", "'ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf'"},
		{"fleet", "'ZCOUNT', KEYS[1], '(' .. now, '+inf'", "'ZCARD', KEYS[1]"},
		{"fleet", ", 'LIMIT', 0, ARGV[1])", ")"},
		{"watch", "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)\n", ""},
		{"watch", ">= tonumber(ARGV[3])", "> tonumber(ARGV[3])"},
		{"watch", " and not redis.call('ZSCORE', KEYS[1], ARGV[1])", ""},
		{"watch", "now + ARGV[2], ARGV[1]", "now + 600000, ARGV[1]"},
		{"watch", "math.max(redis.call('PTTL', KEYS[1]), ARGV[2])", "ARGV[2]"},
		{"watch", "redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))\n", ""},
	} {
		env, scripts := redistest.Embedded(t), ops.Scripts()
		source := scripts[m.script]
		require.Equal(t, 1, strings.Count(source, m.old), "%s has once: %s", m.script, m.old)
		scripts[m.script] = strings.Replace(source, m.old, m.broken, 1)
		err := caller{env.Client(t), env.Prefix, scripts}.holds()
		require.Error(t, err, "%s: %s", m.script, m.broken)
	}
}
