package main

import "context"

// enqueue is 16 producers that enqueue one small job after the other, which
// nobody works on.
func enqueue(b *bench) error {
	all, err := b.openQueues("raw", "asynq", "perkey")
	defer all.leave()
	if err != nil {
		return err
	}
	entries := make([]entry, len(all))
	for i, q := range all {
		entries[i] = entry{q.name, func(ctx context.Context, worker int) error {
			return q.Enqueue(ctx, message{number: worker})
		}}
	}
	results, err := b.measure(entries, sizes{workers: queueHands, turns: b.scale(10, 2), ops: b.scale(100, 50)})
	if err != nil {
		return err
	}
	b.out.table("queue, 16 producers enqueue", "raw", results)
	b.out.bar(rateBar("queue, enqueued/s × asynq", find(results, "perkey"), find(results, "asynq"), 1.3))
	return nil
}
