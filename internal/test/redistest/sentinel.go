package redistest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Sentinel is one primary with two replicas, watched by three sentinels. Its methods are for one goroutine.
type Sentinel struct {
	servers   []*Server
	sentinels []*Server
}

const primaryName = "perkey"

// promptCopy has a replica's first copy begin at once.
var promptCopy = []string{"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}

// StartSentinel starts the six processes, the servers with extra arguments, and returns when a
// failover could succeed. They end with the test.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	RequireServer(t)
	s := &Sentinel{servers: planAll(t, 3, slices.Concat(promptCopy, args)...), sentinels: planAll(t, 3)}
	primary, replicas := s.servers[0], s.servers[1:]
	for _, replica := range replicas {
		replica.args = append(replica.args, "--replicaof", loopback, primary.port())
	}
	startAll(t, s.servers)
	Eventually(t, func() bool { return copies(primary.client(t)) == len(replicas) }, "replicas that have a copy")

	s.writeConfigs(t, primary, replicas)
	startAll(t, s.sentinels)
	// Three that want to lead at the same moment would split the vote, and try again
	// much later. The last is late, and votes for one of the others.
	downAfter := []time.Duration{800 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second}
	for i, sentinel := range s.sentinels {
		hasten(t, sentinel, downAfter[i])
	}
	s.AwaitReplicas(t)
	return s
}

// Calm makes the sentinels wait for twice as long before they take a server for dead, or a new
// primary for a replica that went astray, so that a busy machine undoes few failovers.
func (s *Sentinel) Calm(t testing.TB) {
	t.Helper()
	for i, sentinel := range s.sentinels {
		rdb := sentinel.client(t)
		if rdb.Do(t.Context(), "sentinel", "debug", "publish-period", "500").Err() == nil {
			require.NoError(t, rdb.Do(t.Context(), "sentinel", "set", primaryName, "down-after-milliseconds", []int{1600, 1600, 3000}[i]).Err())
		}
	}
}

// AwaitReplicas waits until another failover could succeed.
func (s *Sentinel) AwaitReplicas(t testing.TB) {
	t.Helper()
	for _, sentinel := range s.sentinels {
		Eventually(t, func() bool { return couldFailOver(sentinel, len(s.servers)-1) }, "a sentinel that could fail over")
	}
}

// Client returns a client that follows the primary; it is closed with the test.
func (s *Sentinel) Client(t testing.TB, options ...func(*redis.FailoverOptions)) redis.UniversalClient {
	t.Helper()
	opt := &redis.FailoverOptions{MasterName: primaryName, SentinelAddrs: addrs(s.sentinels)}
	for _, set := range options {
		set(opt)
	}
	rdb := redis.NewFailoverClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Primary is the server that the first sentinel to answer takes for the primary.
func (s *Sentinel) Primary(t testing.TB) *Server {
	t.Helper()
	for _, sentinel := range s.sentinels {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr})
		at, err := rdb.GetMasterAddrByName(context.Background(), primaryName).Result()
		_ = rdb.Close()
		if err == nil {
			return byAddr(t, s.servers, net.JoinHostPort(at[0], at[1]))
		}
	}
	require.Fail(t, "no sentinel answers")
	return nil
}

// Replicas are the servers other than the primary.
func (s *Sentinel) Replicas(t testing.TB) []*Server {
	t.Helper()
	primary := s.Primary(t)
	return slices.DeleteFunc(slices.Clone(s.servers), func(other *Server) bool { return other == primary })
}

// The user that Isolate leaves alone.
const appUser, appPassword = "app", "app"

// AppClient is a Client whose connections Isolate leaves alone.
func (s *Sentinel) AppClient(t testing.TB, options ...func(*redis.FailoverOptions)) redis.UniversalClient {
	t.Helper()
	s.AllowApp(t)
	return s.Client(t, append(options, func(o *redis.FailoverOptions) { o.Username, o.Password = appUser, appPassword })...)
}

// AllowApp lets an AppClient in, also on a server that was started anew.
func (s *Sentinel) AllowApp(t testing.TB) {
	t.Helper()
	for _, server := range s.servers {
		require.NoError(t, server.client(t).ACLSetUser(t.Context(), appUser, "on", ">"+appPassword, "allkeys", "allchannels", "allcommands").Err())
	}
}

// AppOptions are those of an AppClient in another process.
func AppOptions(sentinels []string) *redis.FailoverOptions {
	return &redis.FailoverOptions{MasterName: primaryName, SentinelAddrs: sentinels, Username: appUser, Password: appPassword}
}

// AppClient is a client of this server alone that Isolate leaves alone.
func (s *Server) AppClient(t testing.TB) *redis.Client {
	t.Helper()
	return Client(t, &redis.Options{Addr: s.Addr, Username: appUser, Password: appPassword, MaxRetries: -1})
}

// Addrs are the sentinels' addresses.
func (s *Sentinel) Addrs() []string { return addrs(s.sentinels) }

// Isolate cuts the primary off from its replicas and, after alone, from the sentinels. It
// returns when they have elected another, while the old one goes on to serve every
// AppClient. After heal that is a replica, and another failover could succeed.
func (s *Sentinel) Isolate(t testing.TB, alone func()) (old *Server, heal func()) {
	t.Helper()
	old = s.Primary(t)
	app := old.AppClient(t)
	require.NoError(t, app.ACLSetUser(t.Context(), "default", "off").Err())
	require.NoError(t, app.ClientKillByFilter(t.Context(), "TYPE", "replica").Err())
	alone()
	require.NoError(t, app.ClientKillByFilter(t.Context(), "USER", "default").Err())
	for end := time.Now().Add(5 * time.Minute); s.Primary(t) == old; time.Sleep(20 * time.Millisecond) { // votes can be split
		require.True(t, time.Now().Before(end), "no other primary is elected")
	}
	return old, func() {
		t.Helper()
		require.NoError(t, app.ACLSetUser(t.Context(), "default", "on").Err())
		s.AwaitReplicas(t)
	}
}

// Failover has a sentinel put a replica in the primary's place, which is well.
func (s *Sentinel) Failover(t testing.TB, sentinel int) {
	t.Helper()
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.sentinels[sentinel].Addr})
	defer func() { _ = rdb.Close() }()
	require.NoError(t, rdb.Failover(t.Context(), primaryName).Err())
}

// Life tells one time of a server as primary, or as a replica, from another.
func (s *Server) Life(t testing.TB) string {
	t.Helper()
	info := s.AppClient(t).Info(t.Context(), "replication").Val()
	return regexp.MustCompile(`role:\w+`).FindString(info) + regexp.MustCompile(`master_replid:\w+`).FindString(info)
}

// AwaitOther waits until every sentinel names the same primary, and not the old one.
func (s *Sentinel) AwaitOther(t testing.TB, old *Server) (primary *Server) {
	t.Helper()
	Eventually(t, func() bool {
		named := map[string]bool{}
		for _, sentinel := range s.sentinels {
			rdb := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr})
			at, err := rdb.GetMasterAddrByName(t.Context(), primaryName).Result()
			_ = rdb.Close()
			if err != nil {
				return false
			}
			named[net.JoinHostPort(at[0], at[1])] = true
		}
		return len(named) == 1 && !named[old.Addr]
	}, "sentinels that name another primary")
	return s.Primary(t)
}

// writeConfigs tells the sentinels of the replicas and of one another, so that they need not wait for announcements.
func (s *Sentinel) writeConfigs(t testing.TB, primary *Server, replicas []*Server) {
	t.Helper()
	ids := make([]string, len(s.sentinels))
	for i := range ids {
		id := make([]byte, 20)
		_, _ = rand.Read(id)
		ids[i] = fmt.Sprintf("%x", id)
	}
	for i, sentinel := range s.sentinels {
		var conf strings.Builder
		line := func(format string, args ...any) { fmt.Fprintf(&conf, format+"\n", args...) }
		line("port %s", sentinel.port())
		line("bind %s", loopback)
		line("dir %q", sentinel.dir)
		line("logfile %q", filepath.Join(sentinel.dir, logName))
		line("sentinel myid %s", ids[i])
		line("sentinel monitor %s %s %s 2", primaryName, loopback, primary.port())
		line("sentinel down-after-milliseconds %s 3000", primaryName)
		line("sentinel failover-timeout %s 2000", primaryName)
		line("sentinel parallel-syncs %s 2", primaryName)
		for _, replica := range replicas {
			line("sentinel known-replica %s %s %s", primaryName, loopback, replica.port())
		}
		for j, other := range s.sentinels {
			if j != i {
				line("sentinel known-sentinel %s %s %s %s", primaryName, loopback, other.port(), ids[j])
			}
		}
		path := filepath.Join(sentinel.dir, "sentinel.conf")
		require.NoError(t, os.WriteFile(path, []byte(conf.String()), 0o600))
		sentinel.args = []string{path, "--sentinel"}
	}
}

// hasten has a sentinel ping and ask more often, so that it can take a silent server for dead after downAfter and
// never one that is well. (Five ping periods are how old its news of a replica may be, and it asks for some once a
// second. A sentinel that was held up for 2 s only looks on for the tilt period.) Before Redis 7 it takes some seconds longer to fail over.
func hasten(t testing.TB, sentinel *Server, downAfter time.Duration) {
	t.Helper()
	rdb := Client(t, &redis.Options{Addr: sentinel.Addr, ReadTimeout: time.Minute}) // it has just begun, and much else has
	if rdb.Do(t.Context(), "sentinel", "debug", "ping-period", "300", "ask-period", "100", "info-period", "200",
		"publish-period", "200", "tilt-period", "3000").Err() == nil {
		require.NoError(t, rdb.Do(t.Context(), "sentinel", "set", primaryName, "down-after-milliseconds", downAfter.Milliseconds()).Err())
	}
}

// couldFailOver reports whether the sentinel sees enough of the others, and replicas that have a copy.
func couldFailOver(sentinel *Server, replicas int) bool {
	rdb := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr})
	defer func() { _ = rdb.Close() }()
	if rdb.CkQuorum(context.Background(), primaryName).Err() != nil {
		return false
	}
	seen, err := rdb.Replicas(context.Background(), primaryName).Result()
	return err == nil && len(seen) == replicas && !slices.ContainsFunc(seen, func(replica map[string]string) bool {
		return replica["flags"] != "slave" || replica["master-link-status"] != "ok"
	})
}

// copies is how many replicas follow the server.
func copies(rdb *redis.Client) int {
	info, _ := rdb.Info(context.Background(), "replication").Result()
	return strings.Count(info, "state=online")
}

func addrs(servers []*Server) []string {
	all := make([]string, len(servers))
	for i, s := range servers {
		all[i] = s.Addr
	}
	return all
}

func byAddr(t testing.TB, servers []*Server, addr string) *Server {
	t.Helper()
	i := slices.IndexFunc(servers, func(s *Server) bool { return s.Addr == addr })
	require.GreaterOrEqual(t, i, 0, "no server of ours is at %s", addr)
	return servers[i]
}
