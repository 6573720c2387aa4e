package store

// Which node of a Cluster serves a record.

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// nodesTick is how often a Locker in use checks which nodes of a Cluster serve slots.
const nodesTick = time.Minute

// lookAtNodes runs forgetGone if it is time.
func (d *deployment) lookAtNodes(now time.Time) {
	last := d.looked.Load()
	if now.UnixNano()-last > int64(nodesTick) && d.looked.CompareAndSwap(last, now.UnixNano()) {
		d.life.Background(d.forgetGone)
	}
}

// forgetGone removes the nodes of a Cluster that no longer serve slots: they have left, or have become replicas.
func (d *deployment) forgetGone() {
	if d.cluster == nil {
		return
	}
	var mu sync.Mutex
	serves := map[*redis.Client]bool{nil: true}
	err := d.cluster.ForEachMaster(context.Background(), func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		serves[node] = true
		return nil
	})
	if err != nil {
		return
	}
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	for node, b := range d.batchers {
		if !serves[node] {
			delete(d.batchers, node)
			b.group.Close()
			b.accept("the node has left the Cluster")
		}
	}
}

func (d *deployment) NodeOf(record string) any { return d.node(record) }

// node is the node that serves a record, on a Cluster whose slots are known. It is nil otherwise: go-redis finds the node.
func (d *deployment) node(record string) *redis.Client {
	if d.cluster == nil {
		return nil
	}
	if !d.mapped.Load() {
		if d.mapping.CompareAndSwap(false, true) { // to load the slots may take long
			d.life.Background(func() {
				_, err := d.cluster.MasterForKey(context.Background(), record)
				d.mapped.Store(err == nil)
				d.mapping.Store(false)
			})
		}
		return nil
	}
	node, err := d.cluster.MasterForKey(context.Background(), record)
	if err != nil {
		return nil
	}
	return node
}

// batcher returns the one for a record's node.
func (d *deployment) batcher(record string) *batcher {
	node := d.node(record)
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	b := d.batchers[node]
	if node != nil {
		d.lookAtNodes(time.Now())
	}
	if b == nil {
		b = newBatcher(d, node)
		if d.life.Closed() {
			b.group.Close()
		}
		d.batchers[node] = b
	}
	return b
}
