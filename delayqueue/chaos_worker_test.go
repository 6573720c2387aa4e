//go:build soak

package delayqueue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
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
	Partitions int
	Lease      time.Duration // of claims and of locks
	File       string
	Process    int
}

const chaosAttempts = 50

func (c chaosConfig) client() redis.UniversalClient {
	if len(c.Addrs) > 1 {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.Addrs, ClusterStateReloadInterval: time.Second, DialTimeout: time.Second, ReadTimeout: 500 * time.Millisecond,
		})
	}
	return redis.NewClient(&redis.Options{Addr: c.Addrs[0], DialTimeout: time.Second, ReadTimeout: 500 * time.Millisecond})
}

func (c chaosConfig) queue(rdb redis.UniversalClient) (*delayqueue.Queue, error) {
	return delayqueue.New(rdb, "q", delayqueue.WithPrefix("p"), delayqueue.WithPartitions(c.Partitions),
		delayqueue.WithMaxAttempts(chaosAttempts), delayqueue.WithMaxDepth(100_000), delayqueue.WithMaxDepthPerKey(100_000))
}

// event is a line in the file of a process. What was written survives its death.
type event struct {
	Kind    string `json:"k"`
	Run     int64  `json:"r"`
	Process int    `json:"p"`
	ID      string `json:"id"`
	Key     string `json:"key,omitempty"`
	Attempt int    `json:"n,omitempty"`
	Losses  int    `json:"l,omitempty"`
	Fence   int64  `json:"f,omitempty"`
	At      int64  `json:"at"`
}

const (
	eventStart = "start" // a run began
	eventAlive = "alive" // its ctx had not ended
	eventEnd   = "end"   // its handler has done its work
)

// handler does a message's work, and writes down when. The time is taken before each look at the ctx: until then nobody else may have had the key.
func (c chaosConfig) handler(file io.Writer) delayqueue.Handler {
	var runs atomic.Int64
	return func(ctx context.Context, m delayqueue.Message) error {
		e := event{Run: runs.Add(1), Process: c.Process, ID: m.ID, Key: m.Key, Attempt: m.Attempt, Losses: m.Losses}
		if lease, ok := core.LeaseFrom(ctx); ok {
			e.Fence = lease.Fence()
		}
		note := func(kind string) error {
			if e.Kind, e.At = kind, history.Now(); ctx.Err() != nil {
				return context.Cause(ctx)
			}
			line, err := json.Marshal(e)
			must(err)
			_, err = file.Write(append(line, '\n'))
			return err
		}
		if err := note(eventStart); err != nil {
			return err
		}
		work := rand.N(4 * time.Millisecond)
		if m.Name == "slow" { // it takes longer than its claim
			work = c.Lease * 3 / 2
		}
		for until := time.Now().Add(work); time.Now().Before(until); {
			time.Sleep(min(time.Until(until), 10*time.Millisecond))
			if err := note(eventAlive); err != nil {
				return err
			}
		}
		if !bytes.Equal(m.Payload, payloadOf(m.ID)) {
			return delayqueue.SkipRetry(errors.New("another payload"))
		}
		return note(eventEnd)
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
	locker, err := core.New(rdb, core.WithPrefix("p"), core.WithTTL(c.Lease))
	must(err)
	w, err := delayqueue.NewWorker(q, locker, c.handler(file), quick(delayqueue.WithClaimLease(c.Lease), delayqueue.WithConcurrency(4))...)
	must(err)
	must(w.Start())
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	must(w.Stop(ctx))
}

// readEvents reads what processes wrote. A last line that was cut short is left out.
func readEvents(files []string) (all []event, err error) {
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) { // one may be killed before it began
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			var e event
			if err := json.Unmarshal([]byte(line), &e); strings.HasSuffix(line, "\n") && err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			} else if err == nil {
				all = append(all, e)
			}
		}
	}
	return all, nil
}
