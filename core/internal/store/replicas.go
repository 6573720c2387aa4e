package store

// Confirmation of grants by replicas.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Confirm asks in steps. Each renews the leases, and none keeps the Locker's Close waiting for the last replica.
func (d *deployment) Confirm(ctx context.Context, batch func() []Renewal, replicas int, wait time.Duration) (known []bool, acks int, err error) {
	renewals := batch()
	client, err := d.primary(ctx, renewals[0].Record)
	if err != nil {
		return nil, 0, err
	}
	if most := client.Options().ReadTimeout; most > 0 {
		client = client.WithTimeout(most + replicaStep)
	}
	for end := time.Now().Add(wait); ; renewals = batch() {
		step := max(min(time.Until(end), replicaStep), time.Millisecond)
		known, acks, err = confirmOnce(ctx, client, renewals, replicas, step)
		if err != nil || acks >= replicas || ctx.Err() != nil || !time.Now().Before(end) || !slices.Contains(known, true) {
			return known, acks, err
		}
	}
}

const replicaStep = 500 * time.Millisecond

// confirmOnce renews leases, and then waits for the replicas on the same connection: WAIT counts
// for the writes of its own connection.
func confirmOnce(ctx context.Context, client *redis.Client, batch []Renewal, replicas int, wait time.Duration) (known []bool, acks int, err error) {
	renewal, waiting := renewCall(ctx, batch), redis.NewIntCmd(ctx, "wait", replicas, wait.Milliseconds())
	_ = luascript.Pipeline(ctx, client, []*luascript.Call{renewal}, waiting) // each command has its own error
	owned, err := renewed(renewal, len(batch))
	if err = cmp.Or(err, waiting.Err()); err != nil {
		return nil, 0, err
	}
	for _, n := range owned {
		known = append(known, n > 0)
	}
	return known, int(waiting.Val()), nil
}

func (d *deployment) Replicates() error {
	if d.single || d.cluster != nil {
		return nil
	}
	return fmt.Errorf("a redis client of type %T may use another connection for each command", d.rdb)
}

// primary is the node that serves a record's writes.
func (d *deployment) primary(ctx context.Context, record string) (*redis.Client, error) {
	if d.cluster != nil {
		return d.cluster.MasterForKey(ctx, record)
	}
	client, known := d.rdb.(*redis.Client)
	if !known {
		return nil, errors.New("the client's connections are not known")
	}
	return client, nil
}
