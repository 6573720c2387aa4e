package delayqueue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Stats counts messages.
type Stats struct{ Queued, Running, Dead int64 }

// maxDeadLetters bounds one call of DeadLetters.
const maxDeadLetters = 1000

// DeadLetters returns the newest dead letters, newest first, at most limit and
// at most 1000. What is not known of a letter, because its record was junk, is
// zero.
func (q *Queue) DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error) {
	if limit < 1 {
		return nil, nil
	}
	ids, err := q.rdb.ZRevRange(ctx, q.partitions[0].base+":dead", 0, int64(min(limit, maxDeadLetters))-1).Result()
	if err != nil {
		return nil, redisError(ctx, "dead letters", err)
	}
	cmds := make([]*redis.SliceCmd, len(ids))
	pipe := q.rdb.Pipeline()
	for i, id := range ids {
		cmds[i] = pipe.HMGet(ctx, q.partitions[0].recordName(id), letterFields...)
	}
	if len(ids) > 0 {
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	letters := make([]DeadLetter, 0, len(ids))
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			if redis.HasErrorPrefix(err, "WRONGTYPE") {
				continue
			}
			return nil, redisError(ctx, "dead letters", err)
		}
		r := readRecord(letterFields, cmd.Val())
		if State(r.text("state")) != StateDead {
			continue // its time was up
		}
		status := r.status(ids[i])
		letter := DeadLetter{
			Message: Message{
				ID: ids[i], Key: status.Key, Name: status.Name, Principal: status.Principal, Payload: []byte(r.text("payload")),
				Attempt: status.Attempts, Conflicts: status.Conflicts, Losses: status.Losses,
				EnqueuedAt: status.EnqueuedAt, ExpiresAt: status.ExpiresAt,
			},
			Cause: q.cause(status), DiedAt: r.time("ended"),
		}
		if plain, err := q.sealer.open(kindPayload, letter.sealedOf(), letter.Payload); err == nil {
			letter.Payload = plain
		} else {
			letter.Payload = nil
		}
		letters = append(letters, letter)
	}
	return letters, nil
}

// Stats counts the queue's messages.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	pipe := q.rdb.Pipeline()
	open, running, dead := pipe.ZCard(ctx, q.partitions[0].base+":open"), pipe.ZCard(ctx, q.partitions[0].base+":running"), pipe.ZCard(ctx, q.partitions[0].base+":dead")
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, redisError(ctx, "stats", err)
	}
	return Stats{Queued: open.Val(), Running: running.Val(), Dead: dead.Val()}, nil
}
