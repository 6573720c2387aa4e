package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

const (
	serversTimeout = 1500 * time.Millisecond // Redis that is away is found to be so within 2 s
	factsTimeout   = 10 * time.Second
	parkedTimeout  = 3 * time.Second
	maxParked      = 10
	maxMet         = 32
	roundTrips     = 3
)

// Facts are what [Facts.Findings] examines. [ReadFacts] reads all of them; a caller that has some
// already, such as a page that reads them now and then, can fill in those. What was not read has
// no findings.
type Facts struct {
	Servers Reading[[]Server] // the primaries, in the order of their addresses
	Fleet   Reading[Fleet]
	Queues  Reading[[]QueueFacts]

	endless Reading[[]string] // keys whose records have no expiry, of those that calls meet
}

// Reading is a value that was read, or why there is none.
type Reading[T any] struct {
	// At is when it was read, by the clock of this process. Zero, without an Err: it was not
	// read.
	At    time.Time
	Value T
	// Err is why there is no value, or none that is newer.
	Err error
}

// QueueFacts are the Facts of one queue.
type QueueFacts struct {
	Info  delayqueue.Info
	Stats Reading[delayqueue.Stats]
	// Parked has, for each of [Facts.LongHeld], how many messages of the queue are queued, as
	// [ReadParked] returns it: it counts up to 10.
	Parked map[string]int
}

// Server is what is known of a primary.
type Server struct {
	Addr string
	// Err is why it did not answer. Then nothing else is known.
	Err error
	// Info has the fields of INFO, by their names, as [ParseInfo] returns them.
	Info map[string]string
	// RoundTrips is how long it took to answer cheap questions.
	RoundTrips []time.Duration
	// Save is the setting of that name: when Redis writes a snapshot.
	Save Reading[string]
	// Rights are those of a user.
	Rights Reading[Rights]
}

// ExamineOptions configure [Examine] and [ReadFacts]. The zero value is the default prefix, and the
// user of the connection.
type ExamineOptions struct {
	// Prefix is that of the locks, [core.WithPrefix].
	Prefix string
	// User is the user of Redis whose rights are compared with what services need; empty: that of the connection.
	User string
}

// Examine is [ReadFacts] and then [Facts.Findings]: it reads Redis, and returns what needs a
// person.
func Examine(ctx context.Context, rdb redis.UniversalClient, o ExamineOptions) ([]Finding, error) {
	f, err := ReadFacts(ctx, rdb, o)
	if err != nil {
		return nil, err
	}
	return f.Findings(time.Now()), nil
}

// ReadFacts asks each primary about ten cheap questions, reads the fleet as [ReadFleet] does, and the queues as
// [delayqueue.Queues], [delayqueue.Queue.Stats] and [ReadParked] do. It scans nothing, and reads no slow log. What
// cannot be read has an Err: if a Redis does not answer this is so after 1.5 s, also for the rest, which is then not
// asked. ReadFacts returns within half a minute; a command that go-redis still has under way ends when go-redis gives
// up. The error of ReadFacts wraps [core.ErrInvalidOption], or ctx's error.
func ReadFacts(ctx context.Context, rdb redis.UniversalClient, o ExamineOptions) (Facts, error) {
	o.Prefix = cmp.Or(o.Prefix, ident.DefaultPrefix)
	switch {
	case nilcheck.IsNil(rdb):
		return Facts{}, invalid("ReadFacts: the redis client is nil")
	case !tellsServers(rdb):
		return Facts{}, invalid("ReadFacts: a %T does not say which servers it uses", rdb)
	case !ident.ValidPrefix(o.Prefix):
		return Facts{}, invalid("ReadFacts: the prefix %q", o.Prefix)
	}
	f := Facts{Servers: readServers(ctx, rdb, &o)}
	away := cmp.Or(f.Servers.Err, allAway(f.Servers.Value))
	if ctx.Err() != nil {
		return Facts{}, fmt.Errorf("ops: examine: %w", ctx.Err())
	}
	if away != nil {
		f.Fleet.Err, f.Queues.Err = away, away
		return f, nil //nolint:nilerr // the facts say what could not be asked
	}
	var both sync.WaitGroup
	var queues []*delayqueue.Queue
	both.Go(func() {
		f.Fleet = ask(ctx, factsTimeout, func(ctx context.Context) (Fleet, error) { return ReadFleet(ctx, rdb, o.Prefix) })
	})
	both.Go(func() {
		read := ask(ctx, factsTimeout, func(ctx context.Context) (readQueues, error) { return queuesOf(ctx, rdb, o.Prefix) })
		f.Queues, queues = Reading[[]QueueFacts]{read.At, read.Value.facts, read.Err}, read.Value.queues
	})
	both.Wait()
	if f.Fleet.Err == nil {
		f.endless = ask(ctx, factsTimeout, func(ctx context.Context) ([]string, error) { return endlessOf(ctx, rdb, o.Prefix, f.Fleet.Value) })
	}
	if held := f.LongHeld(); len(held) > 0 {
		parked := ask(ctx, parkedTimeout, func(ctx context.Context) ([]map[string]int, error) { return parkedIn(ctx, queues, held) })
		for i, of := range parked.Value { // where it is not known, calls that wait are found yet
			f.Queues.Value[i].Parked = of
		}
	}
	if ctx.Err() != nil {
		return Facts{}, fmt.Errorf("ops: examine: %w", ctx.Err())
	}
	return f, nil
}

// ReadServers reads what ReadFacts reads of servers, without their settings and rights: INFO, and
// three cheap questions. A client other than *redis.Client and *redis.ClusterClient does not expose
// its servers: for it Err wraps [errors.ErrUnsupported].
func ReadServers(ctx context.Context, rdb redis.UniversalClient) Reading[[]Server] {
	if nilcheck.IsNil(rdb) || !tellsServers(rdb) {
		return Reading[[]Server]{At: time.Now(), Err: fmt.Errorf("ops: ReadServers: a %T: %w", rdb, errors.ErrUnsupported)}
	}
	return readServers(ctx, rdb, nil)
}

func tellsServers(rdb redis.UniversalClient) bool {
	_, server := rdb.(*redis.Client)
	_, cluster := rdb.(*redis.ClusterClient)
	return server || cluster
}

// readServers asks each primary; without options not for its settings and rights.
func readServers(ctx context.Context, rdb redis.UniversalClient, o *ExamineOptions) Reading[[]Server] {
	list := func(ctx context.Context) ([]*redis.Client, error) { return primaries(ctx, rdb) }
	nodes := ask(ctx, serversTimeout, list)
	if _, cluster := rdb.(*redis.ClusterClient); nodes.Err != nil && cluster && answers(ctx, rdb) { // go-redis has asked a node that is away where the others are
		nodes = ask(ctx, factsTimeout, list)
	}
	if nodes.Err != nil {
		return Reading[[]Server]{Err: nodes.Err}
	}
	all := make([]Server, len(nodes.Value))
	var reads sync.WaitGroup
	for i, node := range nodes.Value {
		reads.Go(func() { all[i] = readServer(ctx, node, o) })
	}
	reads.Wait()
	return Reading[[]Server]{At: time.Now(), Value: all}
}

// allAway is why no server answered, or nil.
func allAway(servers []Server) (err error) {
	for _, s := range servers {
		if s.Err == nil {
			return nil
		}
		err = s.Err
	}
	return err
}

// ask asks a question, and waits for its answer no longer than most.
func ask[T any](ctx context.Context, most time.Duration, question func(context.Context) (T, error)) Reading[T] {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("ops: no answer within %s: %w", most, core.ErrUnavailable))
	answered := make(chan Reading[T], 1)
	go func() {
		defer cancel()
		value, err := question(ctx)
		answered <- Reading[T]{At: time.Now(), Value: value, Err: err}
	}()
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		select {
		case a := <-answered: // which has ended the context
			return a
		default:
			return Reading[T]{At: time.Now(), Err: context.Cause(ctx)}
		}
	}
}

// answers reports whether a node of a Cluster answers; each question goes to any of them.
func answers(ctx context.Context, rdb redis.UniversalClient) bool {
	const questions = 5
	answered := make(chan bool, questions)
	for range questions {
		go func() {
			ping := ask(ctx, serversTimeout/5, func(ctx context.Context) (string, error) { return rdb.Ping(ctx).Result() })
			answered <- ping.Err == nil || denied(ping.Err)
		}()
	}
	for range questions {
		if <-answered {
			return true
		}
	}
	return false
}

func primaries(ctx context.Context, rdb redis.UniversalClient) (all []*redis.Client, err error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return []*redis.Client{rdb.(*redis.Client)}, nil
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = core.ErrUnavailable
	}
	slices.SortFunc(all, func(a, b *redis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
	return all, err
}

func readServer(ctx context.Context, rdb *redis.Client, o *ExamineOptions) Server {
	s := Server{Addr: rdb.Options().Addr}
	if s.Addr == "FailoverClient" { // go-redis's name for what Sentinel names
		s.Addr = "the primary"
	}
	info := ask(ctx, serversTimeout, func(ctx context.Context) (string, error) { return rdb.Info(ctx, "all").Result() })
	if info.Err != nil && !denied(info.Err) {
		s.Err = info.Err
		return s
	}
	s.Info = ParseInfo(info.Value)
	rest := ask(ctx, factsTimeout, func(ctx context.Context) (Server, error) { return s.rest(ctx, rdb, o), nil })
	if rest.Err != nil {
		s.Save.Err, s.Rights.Err = rest.Err, rest.Err
		return s
	}
	return rest.Value
}

// rest asks what is asked of a server that answers.
func (s Server) rest(ctx context.Context, rdb *redis.Client, o *ExamineOptions) Server {
	for range roundTrips {
		sent := time.Now()
		if err := rdb.Time(ctx).Err(); err == nil || denied(err) {
			s.RoundTrips = append(s.RoundTrips, time.Since(sent))
		}
	}
	if o == nil {
		return s
	}
	settings, err := rdb.ConfigGet(ctx, "save").Result()
	save, told := settings["save"]
	if err == nil && !told {
		err = errors.New("CONFIG GET does not report it")
	}
	s.Save = Reading[string]{time.Now(), save, err}
	s.Rights = readRights(ctx, rdb, *o)
	return s
}

// denied reports whether Redis answered that it does not do this for this user, or at all.
func denied(err error) bool {
	_, said := errors.AsType[redis.Error](err)
	return said && !redis.HasErrorPrefix(err, "NOAUTH ") && !redis.HasErrorPrefix(err, "WRONGPASS ")
}

// ParseInfo returns the fields of a reply to INFO, by their names.
func ParseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (s Server) number(field string) int64 {
	n, _ := strconv.ParseInt(s.Info[field], 10, 64) // what is not told is 0
	return n
}

// readQueues are queues, and what is known of each. One that cannot be read is nil.
type readQueues struct {
	facts  []QueueFacts
	queues []*delayqueue.Queue
}

func queuesOf(ctx context.Context, rdb redis.UniversalClient, prefix string) (readQueues, error) {
	infos, err := delayqueue.Queues(ctx, rdb, prefix)
	if err != nil {
		return readQueues{}, err
	}
	all := readQueues{make([]QueueFacts, len(infos)), make([]*delayqueue.Queue, len(infos))}
	eachOf(infos, func(i int, info delayqueue.Info) {
		if all.facts[i].Info = info; info.Err != nil {
			return
		}
		var s delayqueue.Stats
		q, err := delayqueue.Open(ctx, rdb, info.Name, delayqueue.WithPrefix(prefix))
		if err == nil {
			s, err = q.Stats(ctx)
		}
		if err == nil && s.Queued > 0 {
			all.queues[i] = q
		}
		all.facts[i].Stats = Reading[delayqueue.Stats]{time.Now(), s, err}
	})
	return all, nil
}

// eachOf does something with some things, a few at a time.
func eachOf[T any](all []T, do func(i int, one T)) {
	var running sync.WaitGroup
	atOnce := make(chan struct{}, 8)
	for i, one := range all {
		running.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			do(i, one)
		})
	}
	running.Wait()
}

func parkedIn(ctx context.Context, queues []*delayqueue.Queue, keys []string) ([]map[string]int, error) {
	all := make([]map[string]int, len(queues))
	eachOf(queues, func(i int, q *delayqueue.Queue) {
		if q != nil {
			all[i], _ = ReadParked(ctx, q, keys) // what could be read
		}
	})
	return all, nil
}

// endlessOf returns which of the keys that calls wait for, or are refused most often, have records without an expiry.
func endlessOf(ctx context.Context, rdb redis.UniversalClient, prefix string, fleet Fleet) (keys []string, err error) {
	var met distinct
	for _, w := range fleet.LongestWaits(maxMet) {
		met.add(w.Key)
	}
	for _, hot := range fleet.Snapshot().Conflicts {
		if len(met.all) < maxMet {
			met.add(hot.Key)
		}
	}
	left := make([]*redis.DurationCmd, len(met.all))
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range met.all {
			left[i] = pipe.PTTL(ctx, prefix+":lock{}:"+key)
		}
		return nil
	})
	for i, key := range met.all {
		if left[i].Val() == -1 {
			keys = append(keys, key)
		}
	}
	return keys, err
}

// ReadParked returns for each key how many messages of a queue are queued; it counts up to 10. It
// takes three round trips for each key. With an error it returns the counts that it has read
// before.
func ReadParked(ctx context.Context, q *delayqueue.Queue, keys []string) (map[string]int, error) {
	parked := map[string]int{}
	for _, key := range keys {
		line, _, err := q.Line(ctx, key, "", maxParked)
		if err != nil {
			return parked, err
		}
		for _, m := range line {
			if m.State == delayqueue.StateQueued {
				parked[key]++
			}
		}
	}
	return parked, nil
}
