package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/claim.lua
	claimSource string

	claimScript = redis.NewScript(claimSource)
)

// rawClaims is how many messages the floor claims at once.
const rawClaims = 256

// rawQueue is the floor: what a team writes by hand that knows Redis. A sorted
// set of ids, a hash of payloads, and a script that claims a batch; the end of one
// batch and the claim of the next share a round trip. It polls. No retries, no
// order, no tokens: a late worker ends what another one has claimed since, and a
// message waits for the slowest of its batch.
type rawQueue struct {
	*redis.Client
	due, jobs string
	lease     time.Duration
}

func newRawQueue(t target, name string) (queue, error) {
	q := &rawQueue{t.client(), "raw:{" + name + "}:due", "raw:{" + name + "}:jobs", t.lease}
	return q, claimScript.Load(context.Background(), q.Client).Err() // a pipeline cannot try again
}

func (q *rawQueue) Keys() string { return q.due[:len(q.due)-len("due")] + "*" }

func (q *rawQueue) Enqueue(ctx context.Context, m queued) error {
	id := rand.Text()
	pipe := q.Pipeline()
	pipe.HSet(ctx, q.jobs, id, m.payload())
	pipe.ZAdd(ctx, q.due, redis.Z{Score: float64(time.Now().Add(m.delay).UnixMilli()), Member: id})
	_, err := pipe.Exec(ctx)
	return err
}

func (q *rawQueue) Work(handle func(int)) (func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.work(ctx, handle) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

func (q *rawQueue) work(ctx context.Context, handle func(int)) error {
	payloads := make(chan string)
	var handlers, batch sync.WaitGroup
	defer handlers.Wait()
	defer close(payloads)
	for range queueWorkers {
		handlers.Go(func() {
			for p := range payloads {
				handle(numberOf([]byte(p)))
				batch.Done()
			}
		})
	}
	var done []string
	for ctx.Err() == nil {
		ids, jobs, err := q.claim(done)
		if err != nil {
			return err
		}
		if done = ids; len(ids) == 0 {
			_ = pause(ctx, pollEvery)
			continue
		}
		batch.Add(len(jobs))
		for _, p := range jobs {
			payloads <- p.(string)
		}
		batch.Wait()
	}
	pipe := q.Pipeline()
	q.end(pipe, done)
	_, err := pipe.Exec(context.Background())
	return err
}

func (q *rawQueue) end(pipe redis.Pipeliner, done []string) {
	if len(done) > 0 {
		pipe.ZRem(context.Background(), q.due, done)
		pipe.HDel(context.Background(), q.jobs, done...)
	}
}

// claim ends what is done, and claims the next batch.
func (q *rawQueue) claim(done []string) (ids []string, jobs []any, err error) {
	ctx := context.Background()
	pipe := q.Pipeline()
	q.end(pipe, done)
	claim := claimScript.EvalSha(ctx, pipe, []string{q.due, q.jobs}, rawClaims, q.lease.Milliseconds())
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	reply, err := claim.Slice()
	if err != nil || len(reply) == 0 {
		return nil, nil, err
	}
	for _, id := range reply[0].([]any) {
		ids = append(ids, id.(string))
	}
	if jobs = reply[1].([]any); len(jobs) != len(ids) {
		return nil, nil, fmt.Errorf("raw: %d payloads of %d messages", len(jobs), len(ids))
	}
	return ids, jobs, nil
}
