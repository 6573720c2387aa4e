package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// tasks are some of a queue, for laws of what runs and clones them.
type tasks struct {
	*server
	ctx    context.Context
	queue  string
	broken []error
}

func (q *tasks) must(ok bool, law string) {
	if !ok {
		q.broken = append(q.broken, errors.New(law))
	}
}

func (q *tasks) enqueued(id string, opts ...asynq.Option) *asynq.TaskInfo {
	info, err := q.client.EnqueueContext(q.ctx, asynq.NewTask("t", []byte(id)), append(opts, asynq.Queue(q.queue), asynq.TaskID(id))...)
	q.must(err == nil, fmt.Sprint("a task is enqueued: ", err))
	return info
}

func (q *tasks) state(id string) string {
	return q.rdb.HGet(q.ctx, "asynq:{"+q.queue+"}:t:"+id, "state").Val()
}

func (q *tasks) set(id, state string) {
	q.must(q.rdb.HSet(q.ctx, "asynq:{"+q.queue+"}:t:"+id, "state", state).Err() == nil, "a state is set")
}

// runLaws is what running a task promises.
func runLaws(ctx context.Context, rdb redis.UniversalClient, queue string) error {
	q := &tasks{server: newServer(rdb), ctx: ctx, queue: queue}
	later := asynq.ProcessIn(time.Hour)
	q.enqueued("scheduled", later)
	q.must(q.runTask(queue, "scheduled") == isPending && q.state("scheduled") == "pending", "a scheduled task is run")
	q.must(q.runTask(queue, "scheduled") == isPending, "one that is pending is on its way")
	q.must(rdb.LLen(ctx, "asynq:{"+queue+"}:pending").Val() == 1, "once")
	q.enqueued("retry", later)
	q.set("retry", "retry")
	rdb.ZRem(ctx, "asynq:{"+queue+"}:scheduled", "retry")
	rdb.ZAdd(ctx, "asynq:{"+queue+"}:retry", redis.Z{Score: 1, Member: "retry"})
	q.must(q.runTask(queue, "retry") == isPending && q.state("retry") == "pending", "one that waits for a retry is run")
	q.enqueued("active", later)
	q.set("active", "active")
	q.must(q.runTask(queue, "active") == isActive && q.state("active") == "active", "one that is active is told from others")
	q.enqueued("archived")
	q.must(q.inspector.ArchiveTask(queue, "archived") == nil, "a task is archived")
	q.enqueued("completed", later)
	q.set("completed", "completed")
	rdb.ZAdd(ctx, "asynq:{"+queue+"}:completed", redis.Z{Score: 1, Member: "completed"})
	for _, ended := range []string{"archived", "completed"} {
		state := q.runTask(queue, ended)
		q.must(state != isPending && state != isActive && state != isGone && q.state(ended) == ended, "what has ended is not run again")
	}
	q.must(q.runTask(queue, "none") == isGone, "what is gone is told from others")
	return errors.Join(q.broken...)
}

// inheritLaws is what enqueueing a clone promises of the unique lock of its task.
func inheritLaws(ctx context.Context, rdb redis.UniversalClient, queue string) error {
	q := &tasks{server: newServer(rdb), ctx: ctx, queue: queue}
	lock := func() (name, holder string, left time.Duration) {
		names := rdb.Keys(ctx, "asynq:{"+queue+"}:unique:*").Val()
		if len(names) != 1 {
			q.must(false, "there is one lock")
			return "", "", 0
		}
		return names[0], rdb.Get(ctx, names[0]).Val(), rdb.PTTL(ctx, names[0]).Val()
	}
	clone := func(info *asynq.TaskInfo, n int) error {
		return q.enqueue(ctx, info, Origin{ID: "x", Clone: n}, time.Hour)
	}
	of := func(id string) *asynq.TaskInfo {
		return &asynq.TaskInfo{ID: id, Queue: queue, Type: "t", Payload: []byte("x"), Timeout: time.Hour}
	}

	first := q.enqueued("x", asynq.Unique(time.Hour))
	q.enqueued("x~1", asynq.ProcessIn(time.Hour))
	q.must(errors.Is(clone(first, 1), asynq.ErrTaskIDConflict), "an id that is taken is told")
	_, holder, left := lock()
	q.must(holder == "x" && left > 59*time.Minute && left <= time.Hour, "and leaves the lock as it was")
	q.must(clone(first, 2) == nil && q.state("x~2") == "scheduled", "a clone is enqueued")
	name, holder, left := lock()
	q.must(holder == "x~2" && left > 59*time.Minute && left <= time.Hour, "and has the lock, with its time")
	q.must(clone(of("x"), 3) == nil && q.state("x~3") == "scheduled", "one whose lock is another's is enqueued")
	_, holder, _ = lock()
	q.must(holder == "x~2", "and leaves the lock to that")
	rdb.Persist(ctx, name)
	q.must(clone(of("x~2"), 4) == nil, "a lock without an end is no obstacle")
	_, holder, left = lock()
	q.must(holder == "x~4" && left != 0, "and held")
	q.must(q.enqueue(ctx, of("x~4"), Origin{ID: "x", Clone: 5}, 0) == nil && rdb.Get(ctx, name).Val() == "x~5", "one that is due by the time that asynq looks has it too")
	return errors.Join(q.broken...)
}

func TestScripts_Laws(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		require.NoError(t, runLaws(t.Context(), rdb, env.Prefix+"run"))
		require.NoError(t, inheritLaws(t.Context(), rdb, env.Prefix+"inherit"))
	})
}

// A version of asynq whose scripts are others is told of, and what they would do inside ours is not tried.
func TestScripts_OfAnUnknownVersionAreNotRun(t *testing.T) {
	require.NoError(t, strangeScripts(), "go.mod has a version of asynq that is not known: read its scripts, then let asynq.go know them")
	run, unique := runSHA, uniqueSHAs
	t.Cleanup(func() { runSHA, uniqueSHAs = run, unique })
	runSHA, uniqueSHAs = "another", []string{"another", "another"}
	err := strangeScripts()
	require.ErrorContains(t, err, run)
	require.ErrorContains(t, err, unique[0])
	require.ErrorContains(t, err, unique[1])

	rdb, queue := redistest.Real(t).Client(t), t.Name()
	q := &tasks{server: newServer(rdb), ctx: t.Context(), queue: queue}
	first := q.enqueued("x", asynq.ProcessIn(time.Hour), asynq.Unique(time.Hour))
	q.runTask(queue, "x")
	require.Equal(t, "scheduled", q.state("x"), "it comes back by itself")
	require.NoError(t, q.enqueue(t.Context(), first, Origin{ID: "x", Clone: 1}, time.Hour))
	require.Equal(t, "scheduled", q.state("x~1"), "the clone is enqueued")
	require.Equal(t, "x", rdb.Get(t.Context(), rdb.Keys(t.Context(), "asynq:{"+queue+"}:unique:*").Val()[0]).Val(), "without the lock")
	require.Empty(t, q.broken)
}

// Each of these has to break a law.
func TestScripts_MutantsAreCaught(t *testing.T) {
	env := redistest.Real(t)
	rdb := env.Client(t)
	run, inherit := runWrapper.Source(), inheritScript
	t.Cleanup(func() { runWrapper, inheritScript = luascript.New(run), inherit })
	for n, m := range []struct{ source, old, new string }{
		{run, "state ~= 'retry' and", ""},
		{run, "state ~= 'scheduled' and", ""},
		{run, "state ~= 'active' and", ""},
		{run, "state ~= 'pending' and", ""},
		{run, "and redis.call('EXISTS', KEYS[1]) == 1", ""},
		{run, "  return -3\n", ""},
		{run, "return -3", "return 0"},
		{run, "return run()", "run()"},
		{inherit, "redis.call('GET', KEYS[1]) ~= task", "false"},
		{inherit, "\treturn -1\n", "\treturn 0\n"},
		{inherit, "redis.call('DEL', KEYS[1])", ""},
		{inherit, "if enqueued ~= 1 then", "if true then"},
		{inherit, "\tredis.call('SET', KEYS[1], task)", ""},
		{inherit, "if left > 0 then", "if true then"},
		{inherit, "redis.call('PEXPIRE', KEYS[1], left)", ""},
		{inherit, "redis.call('PTTL', KEYS[1])", "0"},
		{inherit, "return enqueued\n", "return 1\n"},
	} {
		require.Equal(t, 1, strings.Count(m.source, m.old), m.old)
		mutant := strings.Replace(m.source, m.old, m.new, 1)
		laws := inheritLaws
		if runWrapper, inheritScript = luascript.New(run), mutant; m.source == run {
			runWrapper, inheritScript, laws = luascript.New(mutant), inherit, runLaws
		}
		require.Error(t, laws(t.Context(), rdb, fmt.Sprint(env.Prefix, "m", n)), m.old)
	}
}

// Callers choose the types of their tasks: what is remembered of them is bounded.
func TestTypically_ManyTypes(t *testing.T) {
	m := &middleware{}
	process := func(kind string) *processing { return &processing{middleware: m, task: asynq.NewTask(kind, nil)} }
	for i := range 3 * maxTypes {
		process(fmt.Sprint("mail:", i)).typically(time.Now())
	}
	known := 0
	m.typical.Range(func(any, any) bool { known++; return true })
	require.Equal(t, maxTypes, known)
	require.True(t, process("mail:0").isShort())
	require.False(t, process(fmt.Sprint("mail:", 2*maxTypes)).isShort(), "it is not known")
}

func TestDelay_FollowsTheHoldersLease(t *testing.T) {
	m := &middleware{settings: defaults()}
	require.NoError(t, WithDelay(2*time.Second, 20*time.Second)(&m.settings))
	for _, c := range []struct{ remaining, least, most time.Duration }{
		{0, 2500 * time.Millisecond, 5 * time.Second}, // not known
		{time.Millisecond, 2 * time.Second, 2 * time.Second},
		{3 * time.Second, 2 * time.Second, 3 * time.Second},
		{10 * time.Second, 5 * time.Second, 10 * time.Second},
		{time.Hour, 10 * time.Second, 20 * time.Second},
	} {
		different := make(map[time.Duration]bool)
		for range 100 {
			d := m.delay(c.remaining)
			require.GreaterOrEqual(t, d, c.least, c.remaining)
			require.LessOrEqual(t, d, c.most, c.remaining)
			different[d] = true
		}
		require.Equal(t, c.least != c.most, len(different) > 50, "tasks refused together are spread out")
	}
}
