//go:build faketime

package main

import (
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// serverGroup is the group of Redis's goroutines, for its wall clock.
const serverGroup = 1

// redisServer is the embedded Redis with what can happen to one.
type redisServer struct {
	*miniredis.Miniredis
	w       *world
	refuses refusal
	wrote   bool          // the script that runs has written something
	cost    time.Duration // what a script takes: they run one at a time
	free    time.Time     // when the last one is through
	skew    time.Duration
	ahead   time.Duration // how far it was set forward, all in all
	admin   net.Conn
}

// refusal is what Redis does not do at the moment.
type refusal int

const (
	nothing refusal = iota
	growth          // it is full
	writes          // it is a replica now
)

func newServer(w *world) *redisServer {
	s := &redisServer{Miniredis: miniredis.NewMiniRedis(), w: w}
	s.ClockTTL(true)
	s.Seed(int(w.config.Seed)) //nolint:gosec // any number will do
	as(serverGroup, func() {
		var err error
		if s.admin, err = s.Dial(); err != nil {
			panic(err)
		}
	})
	s.Server().SetPreHook(s.before)
	return s
}

// serve serves a connection.
func (s *redisServer) serve(c net.Conn) { as(serverGroup, func() { s.Server().ServeConn(c) }) }

// mostEvents is many times of what a world has that is well.
const mostEvents = 600_000

// Redis asks before a command whether it may use more memory. Once a script has written, it is not stopped any more.
var (
	growing = []string{"SET", "SETEX", "PSETEX", "HSET", "HSETNX", "HMSET", "HINCRBY", "ZADD", "ZINCRBY", "SADD", "RPUSH", "LPUSH", "INCR", "INCRBY", "APPEND", "XADD"}
	writing = append([]string{"DEL", "UNLINK", "HDEL", "PEXPIRE", "PEXPIREAT", "EXPIRE", "PERSIST", "ZREM", "ZPOPMIN", "ZREMRANGEBYSCORE", "SREM", "LPOP", "RPOP", "RENAME", "LTRIM"}, growing...)
)

func (s *redisServer) before(c *server.Peer, command string, args ...string) bool {
	s.w.events = append(s.w.events, event{time.Since(s.w.began), command, shown(args)})
	if len(s.w.events) > mostEvents {
		s.w.violation("redis", "there is no end to commands")
		s.w.tell()
		os.Exit(0)
	}
	switch {
	case command == "EVAL" || command == "EVALSHA":
		s.free = later(time.Now(), s.free).Add(s.cost)
		time.Sleep(time.Until(s.free))
		s.wrote = false
		s.age()
	case command == "TIME":
		now := time.Now()
		c.WriteLen(2)
		c.WriteBulk(strconv.FormatInt(now.Unix(), 10))
		c.WriteBulk(strconv.Itoa(now.Nanosecond() / 1000))
		return true
	case s.refuses == growth && !s.wrote && slices.Contains(growing, command):
		s.w.disturb(0)
		c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	case s.refuses == writes && slices.Contains(writing, command):
		s.w.disturb(0)
		c.WriteError("READONLY You can't write against a read only replica.")
		return true
	case slices.Contains(writing, command):
		s.wrote = true
	}
	return false
}

// shown is what an event has of a command's arguments: all that a line shows, and no long payload.
func shown(args []string) []string {
	if !slices.ContainsFunc(args, func(arg string) bool { return len(arg) > widest }) {
		return args
	}
	args = slices.Clone(args)
	for i, arg := range args {
		args[i] = strings.Clone(arg[:min(len(arg), widest)])
	}
	return args
}

// age lets its keys grow old, in whole milliseconds, as PTTL has them: else a script that keeps an expiry as it is would shorten it.
func (s *redisServer) age() { s.SetTime(time.Now().Truncate(time.Millisecond)) }

// forget makes it forget its scripts.
func (s *redisServer) forget() {
	if _, err := s.admin.Write([]byte("*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n")); err != nil {
		panic(err)
	}
	if _, err := s.admin.Read(make([]byte, 100)); err != nil {
		panic(err)
	}
}

// set sets its clock, as NTP or a person does. Redis keeps a key until a time of that clock.
func (s *redisServer) set(d time.Duration) {
	left := map[string]time.Duration{}
	for _, key := range s.keys() {
		as(serverGroup, func() { left[key] = s.TTL(key) })
	}
	s.skew += d
	s.ahead += max(d, 0)
	simSkew(serverGroup, int64(s.skew))
	as(serverGroup, func() {
		s.age()
		for _, key := range slices.Sorted(maps.Keys(left)) {
			switch ttl := left[key]; {
			case ttl <= 0: // it stays
			case ttl > d:
				s.SetTTL(key, ttl-d)
			default:
				s.Del(key)
			}
		}
	})
}

// keys are all that there are, as its own clock says.
func (s *redisServer) keys() (all []string) {
	as(serverGroup, func() {
		s.age()
		all = s.Keys()
	})
	return all
}

// micros is its time.
func (s *redisServer) micros() int64 { return time.Now().Add(s.skew).UnixMicro() }

// restart ends all connections, and takes none for a while.
func (s *redisServer) restart(d time.Duration, keepsData bool) {
	s.w.network.down = true
	for _, e := range s.w.network.open() {
		e.cut()
	}
	if !keepsData {
		as(serverGroup, s.FlushAll)
	}
	s.forget()
	time.Sleep(d)
	s.w.network.down = false
}
