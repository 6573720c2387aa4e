package delayqueue

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// WithConflictBackoff sets the delay of messages that met a held key.
func WithConflictBackoff(initial, most time.Duration) WorkerOption {
	return func(w *Worker) error {
		w.conflict = bounds{initial, most}
		return nil
	}
}

// The longest payloads in records.
const (
	MaxInline     = store.MaxInline
	MaxInlineFull = store.MaxInlineFull
)

// ClaimWithoutMessages is how many elements the reply to a claim has that brings no messages: its head, and what conclude() of
// common.lua adds.
const ClaimWithoutMessages = store.ClaimHead + 1

// The defaults of WithMaxDepth and WithPartitions on a Cluster.
const (
	DefaultClusterDepth      = defaultClusterDepth
	DefaultClusterPartitions = defaultClusterPartitions
)

// ScriptHashes are the scripts' names as EVALSHA knows them.
var ScriptHashes = func() map[string]string {
	hashes := map[string]string{}
	for name, script := range store.Scripts {
		hashes[name] = script.Hash()
	}
	return hashes
}()

// EditRecord changes what Redis holds of a message, in the key of a queue with one partition.
func (q *Queue) EditRecord(key, id string, edit func(string) string) error {
	name := q.manifests.partitions[0].Base + ":" + key
	was, err := q.rdb.HGet(context.Background(), name, id).Result()
	if err != nil {
		return err
	}
	return q.rdb.HSet(context.Background(), name, id, edit(was)).Err()
}

func scored(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }

// ClaimAndDie claims all that is due as a worker that dies at once.
func (q *Queue) ClaimAndDie(lease time.Duration) error {
	for _, p := range q.manifests.partitions {
		if _, err := p.Claim(context.Background(), "dead-worker-"+rand.Text(), lease, store.BatchItems); err != nil {
			return err
		}
	}
	return nil
}

// ToldWaiters is how many calls of Wait are told of ends.
func (q *Queue) ToldWaiters() (n int) {
	q.waits.mu.Lock()
	defer q.waits.mu.Unlock()
	if q.waits.hub == nil {
		return 0
	}
	q.waits.hub.mu.Lock()
	var all []*waiter
	for _, some := range q.waits.hub.waiters {
		all = append(all, some...)
	}
	q.waits.hub.mu.Unlock()
	for _, w := range all {
		if w.listens() {
			n++
		}
	}
	return n
}

// PassEnded lets time pass for what ended in a queue's only partition.
func (q *Queue) PassEnded(d time.Duration) error {
	for _, ring := range []string{"results", "made", "given"} {
		words := strings.Fields(q.rdb.HGet(context.Background(), q.manifests.partitions[0].Keys[store.KeyCounts], ring).Val())
		for i, word := range words {
			if n, _ := strconv.ParseInt(word, 10, 64); n > 1e12 { // a time
				words[i] = fmt.Sprint(n - d.Milliseconds())
			}
		}
		if err := q.rdb.HSet(context.Background(), q.manifests.partitions[0].Keys[store.KeyCounts], ring, strings.Join(words, " ")).Err(); err != nil {
			return err
		}
	}
	return nil
}

// SetCountMost sets how many messages Count looks at.
func (q *Queue) SetCountMost(n int) { q.countMost = n }

// LookForWorkersAfter sets how soon a Queue looks for Workers after a call was parked.
func (q *Queue) LookForWorkersAfter(d time.Duration) { q.reports.workers.again = d }

// LooksForWorkers reports whether it is about to look.
func (q *Queue) LooksForWorkers() bool {
	q.reports.workers.mu.Lock()
	defer q.reports.workers.mu.Unlock()
	return len(q.reports.workers.looking) > 0
}

// Reconsider has the Worker look at a key as when its release is announced to it.
func (w *Worker) Reconsider(key string) { w.waker.reconsider(key) }
