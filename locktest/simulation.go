package locktest

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/perkey-go/perkey/internal/test/embedded"
)

// simulation is what an embedded Redis can be told to do.
type simulation struct {
	redis   *embedded.Server
	clients sync.Map     // the *server.Peer of each connection
	ahead   atomic.Int64 // nanoseconds that its clock is ahead
	down    atomic.Bool
}

// simulate is called before the first client comes.
func simulate(redis *embedded.Server) *simulation {
	s := &simulation{redis: redis}
	redis.Server().SetPreHook(s.before)
	return s
}

// before sees each command before miniredis does, those of scripts included. It reports
// whether it has dealt with it.
func (s *simulation) before(peer *server.Peer, cmd string, _ ...string) bool {
	// A script that has begun goes on to its end.
	if s.isClient(peer) && s.down.Load() {
		peer.Close()
		return true
	}
	ahead := time.Duration(s.ahead.Load())
	if cmd != "TIME" || ahead == 0 {
		return false
	}
	now := time.Now().Add(ahead).UnixMicro()
	peer.WriteLen(2)
	peer.WriteBulk(strconv.FormatInt(now/1e6, 10))
	peer.WriteBulk(strconv.FormatInt(now%1e6, 10))
	return true
}

// isClient tells a connection from a script, for each command of which miniredis makes a
// peer: one with a Ctx, which a connection gets from its first command.
func (s *simulation) isClient(peer *server.Peer) bool {
	if peer.Ctx == nil {
		s.clients.Store(peer, nil)
		peer.OnDisconnect(func() { s.clients.Delete(peer) })
		return true
	}
	_, known := s.clients.Load(peer)
	return known
}

// forward sets the clock forward: the one that scripts see, and the one of records
// that expire.
func (s *simulation) forward(d time.Duration) {
	s.ahead.Add(int64(d))
	s.redis.FastForward(d)
}
