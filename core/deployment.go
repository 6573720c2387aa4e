package core

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/listener"
)

// deployment is the store of one server, or of one Cluster.
type deployment struct {
	*lifecycle
	events     events
	id, prefix string
	rdb        redis.UniversalClient
	single     bool                 // one node serves all keys
	cluster    *redis.ClusterClient // rdb, if it is one
	retries    int                  // of a command that the server did not answer: rdb's own
	renewer    renewer

	batchersMu sync.Mutex
	batchers   map[*redis.Client]*batcher
	looked     atomic.Int64 // when it was last looked which nodes of a Cluster serve slots, in nanoseconds
	commands   sync.Pool    // not global: a pool would carry channels between synctest's bubbles
	mapped     atomic.Bool  // the Cluster's slots are known
	mapping    atomic.Bool  // they are being asked for

	cancellations cancellations
	subscription  *listener.Listener
	deaf          bool // there is no subscription, and OnWarning said so; the listener's
}

// newDeployment makes the store on rdb of the Locker with this id. The client for
// renewals is own, or, if that is nil, one like rdb.
func newDeployment(rdb, own redis.UniversalClient, id, prefix string, c *lifecycle, e events) *deployment {
	d := &deployment{
		lifecycle: c, events: e, id: id, prefix: prefix, rdb: rdb, renewer: renewer{rdb: own},
		batchers: map[*redis.Client]*batcher{},
	}
	d.looked.Store(time.Now().UnixNano())
	d.commands.New = newCommand
	d.cancellations.d = d
	switch client := rdb.(type) {
	case *redis.Client:
		d.single, d.retries = true, client.Options().MaxRetries
	case *redis.ClusterClient:
		d.cluster, d.retries = client, client.Options().MaxRedirects
	}
	d.renewer.connect(rdb)
	d.subscription = listener.New(d.publisher(), channelPrefix(prefix)+id, d.subscribed, d.unsubscribed, e.message)
	return d
}

func (d *deployment) start()          { d.subscription.Start() }
func (d *deployment) listening() bool { return d.subscription.Up() }
func (d *deployment) queues() bool    { return true }

func (d *deployment) close() {
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	for _, b := range d.batchers {
		b.group.Close()
	}
	d.renewer.close() // ends the renewals that are out
}

func (d *deployment) wait() {
	d.subscription.Close()
	d.running.Wait()
}

func (d *deployment) sameAs(other store) bool {
	o, ok := other.(*deployment)
	return ok && d.rdb == o.rdb
}

// publisher is what the subscription is checked with. It publishes in a script, as grants are
// published: a proxy may count the receivers of a script's message otherwise.
func (d *deployment) publisher() listener.Client {
	if client, ok := d.rdb.(*redis.Client); ok {
		return scriptPublisher{listener.NewChecker(client), recordName(d.prefix, "probe")}
	}
	return d.rdb
}

type scriptPublisher struct {
	listener.Checker
	record string
}

func (p scriptPublisher) Publish(ctx context.Context, channel string, message any) *redis.IntCmd {
	return p.Send(ctx, "eval", publishScript.Source(), 1, p.record, channel, message)
}

func (d *deployment) mark() any {
	switch {
	case !d.subscription.Up():
		return markPolls
	case d.single && d.subscription.Counted():
		return markListens
	default:
		return markElsewhere
	}
}

// nodesTick is how often a Locker in use looks which nodes of a Cluster serve slots.
const nodesTick = time.Minute

// lookAtNodes has forgetGone run when it is time.
func (d *deployment) lookAtNodes(now time.Time) {
	last := d.looked.Load()
	if now.UnixNano()-last > int64(nodesTick) && d.looked.CompareAndSwap(last, now.UnixNano()) {
		d.background(d.forgetGone)
	}
}

// forgetGone forgets the nodes of a Cluster that serve no slots any more: they have left, or
// are replicas now.
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
	var gone []*batcher
	d.batchersMu.Lock()
	for node, n := range d.batchers {
		if !serves[node] {
			delete(d.batchers, node)
			gone = append(gone, n)
		}
	}
	d.batchersMu.Unlock()
	for _, n := range gone {
		n.group.Close()
		if wasDown := n.group.Accept(); wasDown {
			n.warn(Warning{Detail: "the node has left the Cluster", Resolved: true})
		}
	}
}

func (d *deployment) nodeOf(record string) any { return d.node(record) }

// node is the node that serves a record, on a Cluster whose slots are known. It is
// nil otherwise: go-redis finds the way.
func (d *deployment) node(record string) *redis.Client {
	if d.cluster == nil {
		return nil
	}
	if !d.mapped.Load() {
		if d.mapping.CompareAndSwap(false, true) { // it may take long
			d.background(func() {
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

// subscribed is called when there is a subscription. The listener calls it and
// unsubscribed on one goroutine.
func (d *deployment) subscribed() {
	if d.renewer.follow() {
		d.events.renewSoon()
	}
	d.events.lookAgain()
	if d.deaf {
		d.deaf = false
		d.events.warn(Warning{Kind: WarnNoSubscription, Resolved: true})
	}
}

// unsubscribed is called when there is no subscription.
func (d *deployment) unsubscribed(err error) {
	d.deaf = true
	d.events.lookAgain() // whoever waits has to poll
	d.renewer.follow()   // the connections that there are may be to an old primary
	d.events.warn(Warning{Kind: WarnNoSubscription, Detail: "waiting calls poll", Err: err})
}

// acquire implements store.
func (d *deployment) acquire(ctx context.Context, q question, stop <-chan struct{}) (reply acquireReply, stopped bool, err error) {
	cmd := d.command(ctx, acquireScript, false, q.record, q.entry, q.lease.Milliseconds(), q.what, q.mark, q.watch)
	if q.keep > 0 {
		cmd.add(q.keep.Milliseconds())
	}
	cmd.key, cmd.entry, cmd.fresh = q.key, q.entry, q.fresh
	r, stopped, err := d.ask(ctx, "acquire", cmd, q.timeout, stop)
	if err != nil || stopped {
		return reply, stopped, err
	}
	defer d.recycle(cmd)
	if reply, err = parseAcquire(r); err != nil {
		if !isUnsent(err) { // else the entry is as it was
			d.takeBack(cmd, r)
		}
		return reply, false, unavailable("acquire", q.key, err)
	}
	if reply.granted {
		if err = q.late(ctx); err != nil {
			d.takeBack(cmd, r)
		}
	}
	return reply, false, err
}

func (d *deployment) publish(ctx context.Context, locker, text string) {
	d.rdb.Publish(ctx, channelPrefix(d.prefix)+locker, text)
}
