package locktest

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/perkey-go/perkey/internal/test/embedded"
)

// simulation controls an embedded Redis.
type simulation struct {
	redis   *embedded.Server
	clients sync.Map     // the *server.Peer of each connection
	ahead   atomic.Int64 // by how many nanoseconds its clock is ahead
	down    atomic.Bool
}

// simulate is called before the first client connects.
func simulate(redis *embedded.Server) *simulation {
	s := &simulation{redis: redis}
	redis.Server().SetPreHook(s.before)
	return s
}

// before is called before miniredis runs a command, also one of a script. It reports whether it has
// handled it.
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

// isClient tells a connection from a script: miniredis makes a peer with a Ctx for each command of
// a script, and a connection gets a Ctx from its first command.
func (s *simulation) isClient(peer *server.Peer) bool {
	if peer.Ctx == nil {
		s.clients.Store(peer, nil)
		peer.OnDisconnect(func() { s.clients.Delete(peer) })
		return true
	}
	_, known := s.clients.Load(peer)
	return known
}

// forward sets the clock forward: both the one that scripts see, and the one by which records
// expire.
func (s *simulation) forward(d time.Duration) {
	s.ahead.Add(int64(d))
	s.redis.FastForward(d)
}
