package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/absent"
	"github.com/perkey-go/perkey/internal/ident"
)

const (
	serversTimeout = 1500 * time.Millisecond // Redis that is away is found to be so within 2 s
	factsTimeout   = 10 * time.Second
	roundTrips     = 3
)

// Facts are what [Facts.Findings] judges. [ReadFacts] reads them all; who has some already, such as a page that reads them now and
// then, fills in those. Of what was not asked nothing is found.
type Facts struct {
	Servers Asked[[]Server] // the primaries, in the order of their addresses
	Fleet   Asked[Fleet]
	Queues  Asked[[]QueueFacts]
}

// Asked is the answer to a question.
type Asked[T any] struct {
	// At is when it was answered, by the clock of this process. Zero: it was not asked, unless there is an Err.
	At    time.Time
	Value T
	// Err is why there is no answer, or none that is newer.
	Err error
}

// QueueFacts are about one queue.
type QueueFacts struct {
	Info  delayqueue.Info
	Stats Asked[delayqueue.Stats]
}

// Server is a primary, as far as it was asked.
type Server struct {
	Addr string
	// Err is why it did not answer: then nothing else is known.
	Err error
	// Info is what INFO says, by the names of its fields. [ParseInfo] makes it.
	Info map[string]string
	// RoundTrips is how long it took to answer questions that cost it nothing.
	RoundTrips []time.Duration
	// Save is the setting of that name: when Redis writes a snapshot.
	Save Asked[string]
	// Rights are those of a user.
	Rights Asked[Rights]
}

// ExamineOptions say what to examine. The zero value is the default prefix, and the user of the connection.
type ExamineOptions struct {
	// Prefix is that of the locks, [core.WithPrefix].
	Prefix string
	// User is the user of Redis whose rights are compared with what services need; empty: that of the connection.
	User string
}

// Examine reads all that there is to know, and says what it finds: see [ReadFacts] and [Facts.Findings].
func Examine(ctx context.Context, rdb redis.UniversalClient, o ExamineOptions) ([]Finding, error) {
	f, err := ReadFacts(ctx, rdb, o)
	if err != nil {
		return nil, err
	}
	return f.Findings(time.Now()), nil
}

// ReadFacts asks each primary some ten cheap questions, reads the fleet as [ReadFleet] does, and the queues as [delayqueue.Queues] and
// [delayqueue.Queue.Stats] do. It scans nothing, and reads no slow log. What cannot be asked has an Err: a Redis that is away
// after 1.5 s, and the rest, which is not asked then, with it. It returns after 12 s at the latest, while what go-redis has under
// way ends when that gives up. Its error wraps [core.ErrInvalidOption].
func ReadFacts(ctx context.Context, rdb redis.UniversalClient, o ExamineOptions) (Facts, error) {
	o.Prefix = cmp.Or(o.Prefix, ident.DefaultPrefix)
	_, server := rdb.(*redis.Client)
	_, cluster := rdb.(*redis.ClusterClient)
	switch {
	case absent.Is(rdb):
		return Facts{}, invalid("ReadFacts: the redis client is nil")
	case !server && !cluster:
		return Facts{}, invalid("ReadFacts: a %T does not tell which servers it uses", rdb)
	case !ident.ValidPrefix(o.Prefix):
		return Facts{}, invalid("ReadFacts: the prefix %q", o.Prefix)
	}
	f := Facts{Servers: ask(ctx, serversTimeout, func(ctx context.Context) ([]Server, error) { return readServers(ctx, rdb, o) })}
	err := f.Servers.Err
	if answers := func(s Server) bool { return s.Err == nil }; err == nil && !slices.ContainsFunc(f.Servers.Value, answers) {
		err = f.Servers.Value[0].Err
	}
	if err != nil {
		f.Fleet.Err, f.Queues.Err = err, err
		return f, nil
	}
	var both sync.WaitGroup
	both.Go(func() {
		f.Fleet = ask(ctx, factsTimeout, func(ctx context.Context) (Fleet, error) { return ReadFleet(ctx, rdb, o.Prefix) })
	})
	both.Go(func() {
		f.Queues = ask(ctx, factsTimeout, func(ctx context.Context) ([]QueueFacts, error) { return readQueues(ctx, rdb, o.Prefix) })
	})
	both.Wait()
	return f, nil
}

// ask asks a question, and waits for its answer no longer than most.
func ask[T any](ctx context.Context, most time.Duration, question func(context.Context) (T, error)) Asked[T] {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("ops: no answer within %s: %w", most, core.ErrUnavailable))
	answered := make(chan Asked[T], 1)
	go func() {
		defer cancel()
		value, err := question(ctx)
		answered <- Asked[T]{At: time.Now(), Value: value, Err: err}
	}()
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		select {
		case a := <-answered: // which has ended the context
			return a
		default:
			return Asked[T]{At: time.Now(), Err: context.Cause(ctx)}
		}
	}
}

func readServers(ctx context.Context, rdb redis.UniversalClient, o ExamineOptions) (all []Server, err error) {
	switch c := rdb.(type) {
	case *redis.Client:
		return []Server{readServer(ctx, c, o)}, nil
	case *redis.ClusterClient:
		var mu sync.Mutex
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			s := ask(ctx, serversTimeout*9/10, func(ctx context.Context) (Server, error) { return readServer(ctx, node, o), nil })
			if s.Err != nil {
				s.Value = Server{Addr: node.Options().Addr, Err: s.Err}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s.Value)
			return nil
		})
		slices.SortFunc(all, func(a, b Server) int { return cmp.Compare(a.Addr, b.Addr) })
		if err == nil && len(all) == 0 {
			err = core.ErrUnavailable
		}
		return all, err
	}
	return nil, nil // ReadFacts refuses it
}

// readServer asks one primary.
func readServer(ctx context.Context, rdb *redis.Client, o ExamineOptions) Server {
	s := Server{Addr: rdb.Options().Addr}
	if s.Addr == "FailoverClient" { // go-redis's name for what Sentinel names
		s.Addr = "the primary"
	}
	text, err := rdb.Info(ctx, "all").Result()
	if err != nil && !refused(err) {
		s.Err = err
		return s
	}
	s.Info = ParseInfo(text)
	for range roundTrips {
		sent := time.Now()
		if err := rdb.Time(ctx).Err(); err == nil || refused(err) {
			s.RoundTrips = append(s.RoundTrips, time.Since(sent))
		}
	}
	settings, err := rdb.ConfigGet(ctx, "save").Result()
	if save, there := settings["save"]; err == nil && !there {
		err = fmt.Errorf("CONFIG GET does not tell it")
	} else {
		s.Save.Value = save
	}
	s.Save.At, s.Save.Err = time.Now(), err
	s.Rights = readRights(ctx, rdb, o)
	return s
}

// refused reports whether Redis answered, if only to refuse.
func refused(err error) bool {
	_, ok := err.(redis.Error) //nolint:errorlint // go-redis returns it as it is
	return ok
}

// ParseInfo reads what INFO says.
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

func readQueues(ctx context.Context, rdb redis.UniversalClient, prefix string) ([]QueueFacts, error) {
	infos, err := delayqueue.Queues(ctx, rdb, prefix)
	if err != nil {
		return nil, err
	}
	all := make([]QueueFacts, len(infos))
	var reads sync.WaitGroup
	atOnce := make(chan struct{}, 8)
	for i, info := range infos {
		all[i].Info = info
		if info.Err != nil {
			continue
		}
		reads.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			var s delayqueue.Stats
			q, err := delayqueue.Open(ctx, rdb, info.Name, delayqueue.WithPrefix(prefix))
			if err == nil {
				s, err = q.Stats(ctx)
			}
			all[i].Stats = Asked[delayqueue.Stats]{time.Now(), s, err}
		})
	}
	reads.Wait()
	return all, nil
}
