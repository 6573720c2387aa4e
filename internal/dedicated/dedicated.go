// Package dedicated makes a Redis client with connections of its own, for commands such as renewals that must
// not wait until others return their connections.
package dedicated

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/perkey-go/perkey/internal/listener"
)

// Client is a Redis client with its own connections. It is safe for concurrent use.
type Client struct {
	size int

	mu  sync.Mutex
	rdb redis.UniversalClient
	// The client that rdb is a copy of; nil: rdb is the user's to close.
	origin redis.UniversalClient
}

// New makes a client like rdb with size connections of its own to each node, which others' commands
// cannot use up. It opens them at their first use. If given is not nil, it uses that instead; if
// rdb is not one of go-redis's kinds, it uses rdb itself.
func New(rdb, given redis.UniversalClient, size int) *Client {
	c := &Client{size: size, rdb: given}
	if given != nil {
		return c
	}
	if c.rdb = c.like(rdb); c.rdb == nil {
		c.rdb = rdb
		return c
	}
	c.origin = rdb
	return c
}

// Get returns the client to use now.
func (c *Client) Get() redis.UniversalClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rdb
}

// Follow reconnects to the primary that the sentinels name, and reports whether there are sentinels
// to follow. go-redis closes the connections to an old primary only for the client that it made,
// not for another client with its options. Call it when a subscription of the original client was
// made anew, or could not be made.
func (c *Client) Follow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.origin == nil || !listener.FollowsSentinels(c.origin) {
		return false
	}
	_ = c.rdb.Close() // what is under way fails, and is sent again
	c.rdb = c.like(c.origin)
	return true
}

// Close closes the connections, unless the client is the user's.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.origin != nil {
		_ = c.rdb.Close()
		c.origin = nil
	}
}

// SentinelLifetime is how long a connection may be used where sentinels name the primary. go-redis
// asks them for each new connection, so the user's client follows too, even if it missed their
// message.
const SentinelLifetime = 10 * time.Second

// like makes a client that retries nothing, since its commands are sent again anyway. It is nil for
// a client of an unknown kind.
func (c *Client) like(rdb redis.UniversalClient) redis.UniversalClient {
	switch client := rdb.(type) {
	case *redis.Client:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = c.size, 0, 0, 0
		opt.MaxRetries, opt.DialerRetries = -1, 1
		opt.PushNotificationProcessor = nil // registers handlers of its own
		// rdb's own, which a connection that it opens meanwhile may change. Commands are
		// tried again soon enough without notice of a server's maintenance.
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		if listener.FollowsSentinels(client) && (opt.ConnMaxLifetime <= 0 || opt.ConnMaxLifetime > SentinelLifetime) {
			opt.ConnMaxLifetime = SentinelLifetime
		}
		return redis.NewClient(&opt)
	case *redis.ClusterClient:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = c.size, 0, 0, 0
		opt.MaxRetries, opt.DialerRetries = -1, 1
		return redis.NewClusterClient(&opt)
	}
	return nil
}
