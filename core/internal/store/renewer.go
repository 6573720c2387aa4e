package store

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/perkey-go/perkey/internal/listener"
)

// RenewalFlights is how many batches of renewals can be in flight to a node at once.
const RenewalFlights = 8

// renewer has the client for renewals, which must not queue for connections behind
// everything else.
type renewer struct {
	mu  sync.Mutex
	rdb redis.UniversalClient
	// What rdb was made from; nil: rdb is the user's to close.
	origin redis.UniversalClient
}

// connect makes a client like rdb with a few connections of its own, which the user's
// commands cannot use up, unless the user gave one. It takes rdb itself when that is of
// another kind.
func (r *renewer) connect(rdb redis.UniversalClient) {
	if r.rdb != nil {
		return
	}
	if r.rdb = renewalClient(rdb); r.rdb == nil {
		r.rdb = rdb
		return
	}
	r.origin = rdb
}

// client is the client to renew with now.
func (r *renewer) client() redis.UniversalClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rdb
}

// follow goes to the primary that the sentinels name, and reports whether there are any
// to follow. go-redis closes the connections to an old primary of the client that it made,
// and not those of another client with its options.
func (r *renewer) follow() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.origin == nil || !listener.FollowsSentinels(r.origin) {
		return false
	}
	_ = r.rdb.Close() // what is under way fails, and is sent again
	r.rdb = renewalClient(r.origin)
	return true
}

func (r *renewer) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.origin != nil {
		_ = r.rdb.Close()
	}
}

// SentinelLifetime is how long a connection for renewals may be used where sentinels
// name the primary. go-redis asks them for each new one, and so has the user's client
// follow too, should it have missed their message.
const SentinelLifetime = 10 * time.Second

// renewalClient does not try anything twice, since renewals are sent again anyway. It is
// nil for a client of an unknown kind.
func renewalClient(rdb redis.UniversalClient) redis.UniversalClient {
	switch client := rdb.(type) {
	case *redis.Client:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = RenewalFlights+1, 0, 0, 0 // one for refreshes
		opt.MaxRetries, opt.DialerRetries = -1, 1
		opt.PushNotificationProcessor = nil // registers handlers of its own
		// rdb's own, which a connection that it opens meanwhile may change. Renewals are
		// tried again soon enough without notice of a server's maintenance.
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		if listener.FollowsSentinels(client) && (opt.ConnMaxLifetime <= 0 || opt.ConnMaxLifetime > SentinelLifetime) {
			opt.ConnMaxLifetime = SentinelLifetime
		}
		return redis.NewClient(&opt)
	case *redis.ClusterClient:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = RenewalFlights+1, 0, 0, 0
		opt.MaxRetries, opt.DialerRetries = -1, 1
		return redis.NewClusterClient(&opt)
	}
	return nil
}
