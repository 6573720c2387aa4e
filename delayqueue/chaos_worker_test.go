//go:build soak

package delayqueue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/history"
)

// chaosVar holds a chaosConfig when this test binary is to be a worker of the chaos tests.
const chaosVar = "PERKEY_DELAYQUEUE_CHAOS"

func init() { processes[chaosVar] = chaosProcess }

// chaosConfig is what a worker process of the chaos tests needs to know.
type chaosConfig struct {
	Addrs      []string // more than one: a Cluster
	Locks      string   // where the worker's locks are asked for; empty: as above
	Prefix     string
	Partitions int
	Lease      time.Duration // of claims and of locks
	File       string
	Process    int
}

const (
	chaosAttempts = 50
	chaosWork     = 4 * time.Millisecond // of a handler, at most
)

func (c chaosConfig) client() redis.UniversalClient {
	if len(c.Addrs) > 1 {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.Addrs, ClusterStateReloadInterval: time.Second, DialTimeout: time.Second, ReadTimeout: 500 * time.Millisecond,
		})
	}
	return redis.NewClient(&redis.Options{Addr: c.Addrs[0], DialTimeout: time.Second, ReadTimeout: 500 * time.Millisecond})
}

func (c chaosConfig) queue(rdb redis.UniversalClient) (*delayqueue.Queue, error) {
	return delayqueue.New(rdb, "q", delayqueue.WithPrefix(c.Prefix), delayqueue.WithPartitions(c.Partitions),
		delayqueue.WithMaxAttempts(chaosAttempts), delayqueue.WithMaxDepth(100_000), delayqueue.WithMaxDepthPerKey(100_000))
}

func (c chaosConfig) locker(rdb redis.UniversalClient, opts ...core.Option) (*core.Locker, error) {
	return core.New(rdb, append(opts, core.WithPrefix(c.Prefix), core.WithTTL(c.Lease))...)
}

// event is a line in the file of a process. What was written survives its death.
type event struct {
	Kind    string `json:"k"`
	Run     int64  `json:"r"`
	Process int    `json:"p"`
	ID      string `json:"id,omitempty"`
	Key     string `json:"key,omitempty"`
	Attempt int    `json:"n,omitempty"`
	Losses  int    `json:"l,omitempty"`
	Fence   int64  `json:"f,omitempty"`
	At      int64  `json:"at"`
	Text    string `json:"t,omitempty"` // how a run ended, or an outcome
}

const (
	eventStart   = "start"   // a run began
	eventAlive   = "alive"   // its ctx had not ended
	eventEnd     = "end"     // its handler returned
	eventSettled = "settled" // its claim came to its end
	eventFresh   = "fresh"   // a fresh call has the key
	eventLost    = "lost"    // a lease of the key was lost
)

type journal struct {
	delayqueue.NopObserver
	mu      sync.Mutex
	file    io.Writer
	process int
	runs    atomic.Int64
}

func (j *journal) write(e event) {
	e.Process = j.process
	line, err := json.Marshal(e)
	must(err)
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.file.Write(append(line, '\n'))
	must(err)
}

func (j *journal) OnSettled(_ context.Context, s delayqueue.Settled) {
	j.write(event{Kind: eventSettled, ID: s.Message.ID, Attempt: s.Message.Attempt, At: history.Now(), Text: string(s.Outcome)})
}

// losses tells a journal of lost leases.
type losses struct {
	core.NopObserver
	j *journal
}

func (l losses) OnLost(_ context.Context, e core.Lost) {
	l.j.write(event{Kind: eventLost, Key: e.Key, At: history.Now()})
}

// inside says that a run goes on, if its ctx lives. The time is taken first: until then
// nobody else may have had the key.
func (j *journal) inside(ctx context.Context, kind string, e event) bool {
	e.Kind, e.At = kind, history.Now()
	if ctx.Err() != nil {
		return false
	}
	j.write(e)
	return true
}

// interrupted is how a run ends whose claim or lease has ended.
const interrupted = "interrupted"

// What the handler of a message is to do, by its name.
const (
	nameWork   = "work"
	nameFails  = "fails" // at its first attempt
	namePoison = "poison"
	namePanics = "panics" // always
	nameSlow   = "slow"   // takes longer than its claim
)

// handler does a message's work, and writes down when.
func (c chaosConfig) handler(j *journal) delayqueue.Handler {
	return func(ctx context.Context, m delayqueue.Message) error {
		e := event{Run: j.runs.Add(1), ID: m.ID, Key: m.Key, Attempt: m.Attempt, Losses: m.Losses}
		if lease, ok := core.LeaseFrom(ctx); ok {
			e.Fence = lease.Fence()
		}
		if !j.inside(ctx, eventStart, e) {
			return context.Cause(ctx)
		}
		end := func(text string) {
			e.Kind, e.At, e.Text = eventEnd, history.Now(), text
			j.write(e)
		}
		work := rand.N(chaosWork)
		if m.Name == nameSlow {
			work = c.Lease * 3 / 2
		}
		for until := time.Now().Add(work); time.Now().Before(until); {
			time.Sleep(min(time.Until(until), 10*time.Millisecond))
			if !j.inside(ctx, eventAlive, e) {
				end(interrupted)
				return context.Cause(ctx)
			}
		}
		switch {
		case len(m.Payload) > 0 && !bytes.Equal(m.Payload, payloadOf(m.ID)):
			end("another payload")
			return delayqueue.SkipRetry(errors.New("another payload"))
		case m.Name == nameFails && m.Attempt == 1:
			end(nameFails)
			return errors.New("once more")
		case m.Name == namePoison:
			end(namePoison)
			return delayqueue.SkipRetry(errors.New(namePoison))
		case m.Name == namePanics:
			end(namePanics)
			panic(namePanics)
		}
		end("")
		return nil
	}
}

// chaosProcess is a worker process. It ends when its standard input does.
func chaosProcess(text string) {
	var c chaosConfig
	must(json.Unmarshal([]byte(text), &c))
	file, err := os.OpenFile(c.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	rdb := c.client()
	q, err := c.queue(rdb)
	must(err)
	locks := rdb
	if c.Locks != "" {
		locks = redis.NewClient(&redis.Options{Addr: c.Locks})
	}
	j := &journal{file: file, process: c.Process}
	locker, err := c.locker(locks, core.WithObserver(losses{j: j}))
	must(err)
	w, err := delayqueue.NewWorker(q, locker, c.handler(j), delayqueue.WithObserver(j), delayqueue.WithClaimLease(c.Lease),
		delayqueue.WithConcurrency(4), delayqueue.WithRetryBackoff(time.Millisecond, 10*time.Millisecond),
		delayqueue.WithConflictBackoff(10*time.Millisecond, 100*time.Millisecond),
		delayqueue.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	must(err)
	must(w.Start())
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	must(w.Stop(ctx))
}

// readEvents reads what processes wrote. A last line that was cut short is left out.
func readEvents(files []string) ([]event, error) {
	var all []event
	for _, name := range files {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) { // killed before it began
			continue
		} else if err != nil {
			return nil, err
		}
		lines := strings.SplitAfter(string(data), "\n")
		for i, line := range lines {
			if !strings.HasSuffix(line, "\n") {
				continue
			}
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", name, i+1, err)
			}
			all = append(all, e)
		}
	}
	return all, nil
}
