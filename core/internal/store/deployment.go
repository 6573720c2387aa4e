package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/internal/dedicated"
	"github.com/perkey-go/perkey/internal/listener"
)

// RenewalFlights is how many batches of renewals can be in flight to a node at once.
const RenewalFlights = 8

// deployment is the store of one server, or of one Cluster.
type deployment struct {
	life        *lifecycle.Lifecycle
	events      Events
	prefix      string
	rdb         redis.UniversalClient
	single      bool                 // one node serves all keys
	cluster     *redis.ClusterClient // rdb, if it is one
	retries     int                  // of a command that the server did not answer: as rdb has them
	patient     bool                 // rdb waits longer for a reply than a caller does
	replyWithin time.Duration        // for how long rdb waits for a reply, as long as its caller does; 0: each command may go to a server of its own
	renewer     *dedicated.Client

	batchersMu sync.Mutex
	batchers   map[*redis.Client]*batcher
	looked     atomic.Int64 // when forgetGone last ran, in nanoseconds
	commands   sync.Pool    // not global: a pool would carry channels between synctest's bubbles
	mapped     atomic.Bool  // the Cluster's slots are known
	mapping    atomic.Bool  // go-redis is loading them

	listing       *pacer
	cancellations cancellations
	subscription  *listener.Listener
	warned        bool // that there is no subscription; the listener's goroutine has it
}

// NewDeployment makes the store of one server, or of one Cluster.
func NewDeployment(rdb redis.UniversalClient, c Config) Store { return newDeployment(rdb, c) }

func newDeployment(rdb redis.UniversalClient, c Config) *deployment {
	d := &deployment{
		life: c.Life, events: c.Events, prefix: c.Prefix, rdb: rdb, batchers: map[*redis.Client]*batcher{},
		listing: newPacer(),
		renewer: dedicated.New(rdb, c.Renewer, RenewalFlights+1), // one for refreshes
	}
	d.looked.Store(time.Now().UnixNano())
	d.commands.New = newCommand
	d.cancellations.d = d
	switch client := rdb.(type) {
	case *redis.Client:
		d.single, d.retries = true, client.Options().MaxRetries
		d.waits(client.Options().ReadTimeout)
	case *redis.ClusterClient:
		d.cluster, d.retries = client, client.Options().MaxRedirects
		d.waits(client.Options().ReadTimeout)
	}
	d.subscription = listener.New(d.publisher(), channelPrefix(c.Prefix)+c.ID, d.subscribed, d.unsubscribed, d.receive)
	return d
}

// waits takes for how long rdb waits for a reply.
func (d *deployment) waits(readTimeout time.Duration) {
	d.replyWithin = readTimeout
	if d.patient = readTimeout <= 0 || readTimeout > ReplyTimeout; d.patient {
		d.replyWithin = ReplyTimeout
	}
}

func (d *deployment) Start()          { d.subscription.Start() }
func (d *deployment) Listening() bool { return d.subscription.Up() }
func (d *deployment) Queues() bool    { return true }
func (d *deployment) Single() bool    { return d.single }
func (d *deployment) Fences() int     { return int(FenceBlock) }

func (d *deployment) Close() {
	d.batchersMu.Lock()
	defer d.batchersMu.Unlock()
	for _, b := range d.batchers {
		b.group.Close()
	}
	d.renewer.Close() // ends the renewals that are out
}

func (d *deployment) Wait() {
	d.subscription.Close()
	d.life.Wait()
}

func (d *deployment) SameAs(other Store) bool {
	o, ok := other.(*deployment)
	return ok && d.rdb == o.rdb
}

// publisher is the client with which the subscription is checked. It publishes in a script, as
// grants are published: a proxy may count the receivers of other messages differently.
func (d *deployment) publisher() listener.Client {
	if client, ok := d.rdb.(*redis.Client); ok {
		return scriptPublisher{listener.NewChecker(client), d, RecordName(d.prefix, "probe")}
	}
	return d.rdb
}

type scriptPublisher struct {
	listener.Checker
	d      *deployment
	record string
}

func (p scriptPublisher) Publish(ctx context.Context, channel string, message any) (receivers *redis.IntCmd) {
	p.d.batcher(p.record).watch(func() error {
		receivers = p.Send(ctx, "eval", publishScript.Source(), 1, p.record, channel, message)
		return receivers.Err()
	})
	return receivers
}

func (d *deployment) Mark() Mark {
	switch {
	case !d.subscription.Up():
		return Polls
	case d.single && d.subscription.Counted():
		return Listens
	default:
		return Elsewhere
	}
}

// subscribed is called when there is a subscription. The listener calls it and unsubscribed on one
// goroutine.
func (d *deployment) subscribed() {
	if d.renewer.Follow() {
		d.events.RenewSoon()
	}
	d.events.LookAgain()
	if d.warned {
		d.warned = false
		d.events.Warn(Warning{Kind: WarnNoSubscription, Resolved: true})
	}
}

// unsubscribed is called when there is no subscription.
func (d *deployment) unsubscribed(err error) {
	d.warned = true
	d.events.LookAgain() // calls that wait have to poll
	d.renewer.Follow()   // the present connections may be to an old primary
	d.events.Warn(Warning{Kind: WarnNoSubscription, Detail: "waiting calls poll", Err: err})
}
