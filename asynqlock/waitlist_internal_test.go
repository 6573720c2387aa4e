package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// listLaws is what a list promises. It is an error if one does not hold.
// It is long since each law begins with the list that the laws before it have left.
func listLaws(ctx context.Context, rdb redis.UniversalClient, l waitlist) error {
	var broken []error
	must := func(ok bool, law string) {
		if !ok {
			broken = append(broken, errors.New(law))
		}
	}
	put := func(task, before string, since int64, expected time.Duration) wait {
		w, err := l.wait(ctx, rdb, task, before, time.UnixMilli(since), time.Hour, expected)
		must(err == nil, "it can be written")
		return w
	}
	wake := func(expected int, gone, passed string, skip int) choice {
		c, err := l.wake(ctx, rdb, expected, gone, passed, skip)
		must(err == nil, "it can be read")
		return c
	}
	start := func(task string) int {
		n, err := l.start(ctx, rdb, task)
		must(err == nil, "it can be left")
		return n
	}
	now := time.Now().UnixMilli()
	for n, task := range []string{"1:qa", "1:qb", "1:qc"} {
		w := put(task, "", now+int64(n), 0)
		must(w.since.UnixMilli() == now+int64(n) && w.before == n && !w.next, "each is behind those before it")
	}
	must(put("1:qb", "", now+99, 0).since.UnixMilli() == now+1, "a place is kept, whatever is said of it later")
	must(rdb.PTTL(ctx, string(l)).Val() > 59*time.Minute, "it ends some time")
	must(wake(1, "", "", 0).task == "1:qa", "the oldest is woken")
	c := wake(1, "", "", 0)
	must(c.task == "" && c.expected, "and no other while it is expected")
	must(wake(2, "", "", 0).task == "1:qb", "unless more may be")
	w := put("1:qa", "", now+99, time.Minute)
	must(w.next && w.since.UnixMilli() == now, "the one that is expected may stay so")
	must(wake(2, "", "", 0).expected, "and is")
	must(!put("1:qc", "", now+99, time.Minute).next, "another may not")
	must(put("1:qa", "", now+99, 0).since.UnixMilli() == now, "when it is back it has its place again")
	must(wake(2, "", "", 0).task == "1:qa", "and is woken again")
	must(start("1:qa") == 1, "who runs has left: one waits, and one was woken")
	must(put("1:qa", "", now+50, 0).since.UnixMilli() == now+50, "and begins anew")
	must(start("1:qa") == 1, "")
	must(put("1:qb~1", "1:qb", now+99, 0).since.UnixMilli() == now+1, "a clone takes the place over")
	must(rdb.ZCard(ctx, string(l)).Val() == 2, "and the first has left")

	must(wake(1, "", "", 0).task == "1:qb~1", "the oldest again")
	must(wake(1, "", "1:qb~1", 1).task == "1:qc", "one that is passed is not expected, and the next is")
	must(wake(1, "1:qc", "", 0).task == "1:qb~1", "one that is gone has left, and what was passed has its place")
	must(start("1:qb~1") == 0 && rdb.Exists(ctx, string(l)).Val() == 0, "nothing is left")
	must(wake(1, "", "1:qb~1", 0) == choice{}, "what left while it was passed is not back")

	put("1:qd", "", now, 0)
	must(wake(1, "", "", 0).task == "1:qd", "it is woken")
	must(rdb.ZAdd(ctx, string(l), redis.Z{Score: float64(-now + 5000), Member: "g:1:qd"}).Err() == nil, "")
	put("1:qe", "", now, 0)
	must(!put("1:qd", "", 0, time.Minute).next, "who did not come in time is expected no more")
	must(start("1:qd") == 1, "")
	put("1:qf", "", now+1, 0)
	must(wake(1, "", "", 0).task == "1:qe", "it is woken")
	must(rdb.ZAdd(ctx, string(l), redis.Z{Score: float64(-now + 5000), Member: "g:1:qe"}).Err() == nil, "")
	must(wake(1, "", "", 0).task == "1:qf", "who did not come in time holds up nobody")
	w = put("1:qg", "", 0, 0)
	must(w.since.UnixMilli() >= now-60_000 && w.waited == 0, "who is not known waits since now")
	return errors.Join(broken...)
}

func TestWaitlist_Laws(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.NoError(t, listLaws(t.Context(), env.Client(t), waitlist(env.Prefix+":asynq{}:k")))
	})
}

// Each of these has to break a law.
func TestWaitlist_MutantsAreCaught(t *testing.T) {
	rdb := redistest.Real(t).Client(t)
	sources := map[**luascript.Script]string{&waitScript: waitScript.Source(), &startScript: startScript.Source(), &wakeScript: wakeScript.Source()}
	for n, m := range []struct {
		script   **luascript.Script
		old, new string
	}{
		{&waitScript, "score >= AWAY and score - AWAY or score", "score"},
		{&waitScript, "its = its or known", "its = known"},
		{&waitScript, "known > 0 and known or now", "known"},
		{&waitScript, "its = since(before) or its", ""},
		{&waitScript, "redis.call('ZREM', list, before, 'g:' .. before)", ""},
		{&waitScript, "redis.call('ZREM', list, 'g:' .. task)", ""},
		{&waitScript, "  put(-(now + tonumber(ARGV[5])), 'g:' .. task)\n", "  redis.call('ZREM', list, 'g:' .. task)\n"},
		{&waitScript, "and expected and -tonumber(expected) > now", ""},
		{&waitScript, "and -tonumber(expected) > now", ""},
		{&waitScript, "redis.call('PEXPIRE'", "redis.pcall('ECHO'"},
		{&waitScript, "'0', string.format('(%.0f', its)", "'0', string.format('%.0f', its)"},
		{&startScript, "ARGV[1], 'g:' .. ARGV[1]", "ARGV[1]"},
		{&startScript, "ARGV[1], 'g:' .. ARGV[1]", "'g:' .. ARGV[1]"},
		{&startScript, "string.format('(%.0f', AWAY)", "'+inf'"},
		{&wakeScript, "redis.call('ZREM', list, ARGV[3], 'g:' .. ARGV[3])", ""},
		{&wakeScript, "redis.call('ZREM', list, 'g:' .. ARGV[4])", ""},
		{&wakeScript, "    put(its, ARGV[4])\n", ""},
		{&wakeScript, "  if its then\n", "  its = its or 1\n  if its then\n"},
		{&wakeScript, "redis.call('ZREMRANGEBYSCORE', list, string.format('%.0f', -now), '(0')", ""},
		{&wakeScript, ">= tonumber(ARGV[1])", "> tonumber(ARGV[1])"},
		{&wakeScript, "put(first[2] + AWAY, task)", ""},
		{&wakeScript, "put(-(now + tonumber(ARGV[2])), 'g:' .. task)", ""},
		{&wakeScript, "'LIMIT', ARGV[5]", "'LIMIT', '0'"},
	} {
		source := sources[m.script]
		require.Equal(t, 1, strings.Count(source, m.old), m.old)
		*m.script = luascript.New(strings.Replace(source, m.old, m.new, 1))
		err := listLaws(t.Context(), rdb, waitlist(fmt.Sprint("mutants:", n)))
		*m.script = luascript.New(source)
		require.Error(t, err, m.old)
	}
}
