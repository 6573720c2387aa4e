package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// rollout is a service of many replicas on one Redis, of two releases, and what happened in it. The newer release
//
//   - adds /added/{id},
//   - renames /legacy/{id} to /modern/{id},
//   - has no guard for /carts/{id},
//   - has another key function for /orders/{id},
//   - has one for /invoices/{id} that needs a header, which the older one does not store,
//   - stores requests in a form that the older one does not know, too.
type rollout struct {
	t   *testing.T
	env *redistest.Env

	mu         sync.Mutex
	replicas   []*replica
	tickets    map[string]string   // by id: the target
	runs       map[string][]string // of a ticket's handler: release and path
	authorized map[string]bool
	busy       map[string]bool // what runs under one key function in both releases
	fresh      int
}

type replica struct {
	release string
	handler http.Handler
	queue   *delayqueue.Queue
	worker  *delayqueue.Worker
}

// newForm is how the newer release stores requests of /added.
type newForm struct {
	Version int    `json:"v"`
	Verb    string `json:"verb"`
	Where   string `json:"where"`
}

func (s *rollout) start(release string) *replica {
	s.t.Helper()
	rdb := s.env.Client(s.t)
	q, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix(s.env.Prefix))
	require.NoError(s.t, err)
	locker := testbed.NewLocker(s.t, rdb, core.WithPrefix(s.env.Prefix))
	r := &replica{release: release, queue: q}
	guard := locker.Guard(delayqueue.Policy(q))
	principal := sentBy(func(*http.Request) (string, error) { return "ann", nil }, s.authorize)
	quiet := httplock.WithLogger(slog.New(slog.DiscardHandler))
	perKey := func(name string, key httplock.KeyFunc, opts ...httplock.Option) (string, http.Handler) {
		h := s.serve(release, name)
		return "POST /" + name + "/{id}", httplock.PerKey(guard, key, append(opts, principal, quiet, httplock.WithStatusPath("/tickets/"))...)(h)
	}
	param := func(prefix string) httplock.KeyFunc {
		return func(r *http.Request) (string, error) { return prefix + r.PathValue("id"), nil }
	}
	mux := http.NewServeMux()
	var handler delayqueue.Handler
	opts := []httplock.ReplayOption{httplock.WithReplayReauthorize(s.authorize)}
	if release == "old" {
		mux.Handle(perKey("orders", param("order:")))
		mux.Handle(perKey("carts", param("cart:")))
		mux.Handle(perKey("legacy", param("legacy:")))
		mux.Handle(perKey("invoices", param("invoice:")))
		handler = httplock.Replay(mux, opts...)
	} else {
		mux.Handle(perKey("orders", param("o:")))
		mux.Handle("POST /carts/{id}", s.serve(release, "carts"))
		mux.Handle(perKey("modern", param("legacy:")))
		mux.Handle(perKey("added", param("added:")))
		mux.Handle(perKey("invoices", func(r *http.Request) (string, error) {
			if r.Header.Get("X-Tenant") == "" {
				return "", httplock.BadKey(errors.New("no X-Tenant"))
			}
			return "invoice:" + r.PathValue("id"), nil
		}, httplock.WithAllowedHeaders("X-Tenant")))
		replay := httplock.Replay(mux, append(opts, httplock.WithTargetRewrite(func(_, target string) string {
			if id, was := strings.CutPrefix(target, "/legacy/"); was {
				return "/modern/" + id
			}
			return target
		}))...)
		handler = s.readsNewForm(replay)
	}
	r.handler = mux
	r.worker, err = delayqueue.NewWorker(q, locker, handler, delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(s.t, err)
	require.NoError(s.t, r.worker.Start())
	s.t.Cleanup(func() { assert.NoError(s.t, r.worker.Stop(context.Background())) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = append(s.replicas, r)
	return r
}

func (s *rollout) readsNewForm(replay delayqueue.Handler) delayqueue.Handler {
	return func(ctx context.Context, m delayqueue.Message) error {
		if bytes.HasPrefix(m.Payload, []byte(`{"v":3`)) {
			var f newForm
			assert.NoError(s.t, json.Unmarshal(m.Payload, &f))
			m.Payload = []byte(fmt.Sprintf(`{"v":1,"method":%q,"target":%q}`+"\n", f.Verb, f.Where))
		}
		return replay(ctx, m)
	}
}

// stop takes the first replicas of a release away.
func (s *rollout) stop(release string, n int) {
	s.t.Helper()
	for range n {
		s.mu.Lock()
		i := 0
		for s.replicas[i].release != release {
			i++
		}
		r := s.replicas[i]
		s.replicas = append(s.replicas[:i:i], s.replicas[i+1:]...)
		s.mu.Unlock()
		require.NoError(s.t, r.worker.Stop(context.Background()))
	}
}

func (s *rollout) authorize(r *http.Request, principal string) error {
	parked, _ := httplock.Replayed(r.Context())
	assert.Equal(s.t, "ann", principal)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorized[parked.ID] = true
	return nil
}

// serve is the handler of a route.
func (s *rollout) serve(release, name string) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		resource := name + "/" + r.PathValue("id")
		if name == "modern" {
			resource = "legacy/" + r.PathValue("id")
		}
		exclusive := name == "modern" || name == "legacy" || name == "invoices"
		parked, replayed := httplock.Replayed(r.Context())
		s.mu.Lock()
		if !replayed {
			s.fresh++
		} else {
			s.runs[parked.ID] = append(s.runs[parked.ID], release+" "+r.URL.Path)
			assert.True(s.t, s.authorized[parked.ID], "%s of %s runs without authorization", parked.ID, resource)
			_, held := core.LeaseFrom(r.Context())
			assert.True(s.t, held, "%s runs without its key", parked.ID)
		}
		if exclusive {
			assert.False(s.t, s.busy[resource], "%s runs twice at once", resource)
			s.busy[resource] = true
		}
		s.mu.Unlock()
		time.Sleep(rand.N(4 * time.Millisecond))
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, resource)
	})
}

// clients have requests made by many at once, to any replica, for a time.
func (s *rollout) clients(n int, d time.Duration) {
	s.t.Helper()
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range n {
		wg.Go(func() {
			for time.Now().Before(end) {
				s.request()
			}
		})
	}
	wg.Wait()
}

func (s *rollout) request() {
	s.mu.Lock()
	r := s.replicas[rand.N(len(s.replicas))]
	if rand.N(3) == 0 {
		r = s.replicas[len(s.replicas)-1] // the newest has its share
	}
	s.mu.Unlock()
	names := []string{"orders", "carts", "legacy", "invoices"}
	if r.release == "new" {
		names = []string{"orders", "carts", "modern", "invoices", "added", "new form"}
	}
	name, id := names[rand.N(len(names))], rand.N(6)
	if name == "new form" {
		payload, err := json.Marshal(newForm{3, http.MethodPost, fmt.Sprint("/added/", id)})
		assert.NoError(s.t, err)
		ticket, err := r.queue.Enqueue(s.t.Context(), delayqueue.Job{
			Key: fmt.Sprint("added:", id), Name: "POST /added/{id}", Principal: "ann", Payload: append(payload, '\n'),
		})
		assert.NoError(s.t, err)
		s.parked(ticket.ID, "new form")
		time.Sleep(20 * time.Millisecond)
		return
	}
	req := testbed.Request(s.t, http.MethodPost, fmt.Sprint("/", name, "/", id), "{}")
	if r.release == "new" {
		req.Header.Set("X-Tenant", "t1")
	}
	answer := testbed.Do(r.handler, req)
	if answer.Status == http.StatusAccepted {
		s.parked(strings.TrimPrefix(answer.Header.Get("Location"), "/tickets/"), r.release+" "+name)
		time.Sleep(5 * time.Millisecond)
		return
	}
	assert.Equal(s.t, http.StatusOK, answer.Status, answer.Body)
}

func (s *rollout) parked(id, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets[id] = what
}

// settles waits until nothing is parked.
func (s *rollout) settles(within time.Duration) {
	s.t.Helper()
	q := s.replicas[0].queue
	require.Eventually(s.t, func() bool {
		stats, err := q.Stats(s.t.Context())
		return err == nil && stats.Queued+stats.Running == 0
	}, within, 50*time.Millisecond, "all tickets end")
}

// What a rolling deployment parks under either release runs once, under its key and authorized.
func TestReplay_RollingDeployment(t *testing.T) {
	t.Parallel()
	s := &rollout{
		t: t, env: redistest.Real(t),
		tickets: map[string]string{}, runs: map[string][]string{}, authorized: map[string]bool{}, busy: map[string]bool{},
	}
	for range 9 {
		s.start("old")
	}
	s.clients(24, 300*time.Millisecond)
	s.start("new")
	s.clients(24, 300*time.Millisecond)
	s.settles(10 * time.Minute) // most replicas hand a request back, each time for longer: chance says who gets it
	// The queue stands still while the older replicas go.
	require.NoError(t, s.replicas[0].queue.Pause(t.Context(), time.Hour))
	s.clients(24, 300*time.Millisecond)
	dropped := 0
	for id, what := range s.tickets { // nobody will have X-Tenant for these: they would expire
		if what == "old invoices" && s.replicas[0].queue.Cancel(t.Context(), id) == nil {
			delete(s.tickets, id)
			dropped++
		}
	}
	s.stop("old", 9)
	s.start("new")
	require.NoError(t, s.replicas[0].queue.Resume(t.Context()))
	s.clients(24, 300*time.Millisecond)
	s.settles(10 * time.Minute) // most replicas hand a request back, each time for longer: chance says who gets it

	ran, newByOld := map[string]int{}, 0
	for id, what := range s.tickets {
		status, err := s.replicas[0].queue.Status(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, [3]any{delayqueue.StateDone, 1, 0}, [3]any{status.State, status.Attempts, status.Losses}, "%s: %s", what, status.Cause)
		require.Len(t, s.runs[id], 1, what)
		release, _, _ := strings.Cut(s.runs[id][0], " ")
		ran[what+" by "+release]++
		if strings.HasPrefix(what, "new") && release == "old" {
			newByOld++
		}
	}
	require.Len(t, s.runs, len(s.tickets), "nothing else ran")
	for _, what := range []string{
		"old orders by new", "old carts by new", "old legacy by new", "new modern by new", "new added by new", "new form by new", "old invoices by old",
	} {
		require.Positive(t, ran[what], "%s: %v", what, ran)
	}
	require.Positive(t, newByOld, ran)
	t.Logf("%d tickets, %d fresh requests, %d cancelled: %v", len(s.tickets), s.fresh, dropped, ran)
}
