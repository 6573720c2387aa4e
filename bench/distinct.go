package main

import "context"

// distinct is 64 goroutines that never want the same key: what concurrent calls
// can gain by going to Redis together.
func distinct(b *bench) error {
	const workers = 64
	all, err := b.openAll(enter("raw", "group", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"), workers)
	defer all.close()
	if err != nil {
		return err
	}
	entries := make([]entry, len(all))
	for i, c := range all {
		slots := newSlots(workers, "distinct")
		entries[i] = entry{c.name, func(ctx context.Context, worker int) error { return pair(ctx, c, &slots[worker]) }}
	}
	results, err := b.measure(entries, sizes{workers: workers, turns: b.scale(20, 2), ops: 25})
	if err != nil {
		return err
	}
	b.out.table("uncontended, 64 goroutines, distinct keys", "raw", results)
	b.out.bar(bar{
		what: "uncontended, 64 goroutines, throughput × raw",
		got:  find(results, "perkey").ratio(find(results, "raw"), perSecond), want: 1.4, atLeast: true,
	})
	return nil
}
