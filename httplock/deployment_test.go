package httplock_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// deployment is a service of which replicas of two releases run side by side, and what its handlers did.
type deployment struct {
	t   *testing.T
	env *redistest.Env

	mu     sync.Mutex
	most   int              // handlers that may run at once for one order
	inside map[string]int   // by order
	runs   map[string]int   // by request
	gates  map[string]*gate // of requests that are to hold their keys
	number int
}

type gate struct{ entered, leave chan struct{} }

// release is what the replicas of a release have in common.
type release struct {
	keys    [][2]string // the prefix and the text of each key that a request takes, the outermost first
	route   string      // default: /orders/
	queues  []string    // that it serves; the last one parks. Default: ship. Others have four partitions
	counted int
	keyring *delayqueue.Keyring
	sealed  bool // with a store of idempotency
	replay  []httplock.ReplayOption
}

type server struct {
	http.Handler
	delayqueue.NopObserver
	route    string
	queue    *delayqueue.Queue // of the first prefix, that parks
	worker   []*delayqueue.Worker
	returned atomic.Int64 // messages that its workers left to others
}

func (s *server) OnSettled(_ context.Context, e delayqueue.Settled) {
	if e.Outcome == delayqueue.OutcomeReturned {
		s.returned.Add(1)
	}
}

func newDeployment(t *testing.T) *deployment {
	return &deployment{t: t, env: redistest.Real(t), most: 1, inside: map[string]int{}, runs: map[string]int{}, gates: map[string]*gate{}}
}

// pay is the handler of all releases.
func (d *deployment) pay(w http.ResponseWriter, r *http.Request) {
	order, n := r.PathValue("id"), r.URL.Query().Get("n")
	d.mu.Lock()
	d.inside[order]++
	assert.LessOrEqual(d.t, d.inside[order], d.most, "handlers of order %s", order)
	d.runs[n]++
	g := d.gates[n]
	d.mu.Unlock()
	if g != nil {
		close(g.entered)
		<-g.leave
	}
	d.mu.Lock()
	d.inside[order]--
	d.mu.Unlock()
	_, _ = io.WriteString(w, "paid "+n)
}

func (d *deployment) start(r release) *server {
	d.t.Helper()
	t, rdb := d.t, d.env.Client(d.t)
	s, mux := &server{route: r.route}, http.NewServeMux()
	if s.route == "" {
		s.route = "/orders/"
	}
	s.Handler = mux
	h, quiet := http.Handler(http.HandlerFunc(d.pay)), slog.New(slog.DiscardHandler)
	queues, parks := map[string]*delayqueue.Queue{}, map[string]*delayqueue.Queue{}
	for i, key := range slices.Backward(r.keys) {
		prefix, text := d.env.Prefix+key[0], key[1]
		locker := testbed.NewLocker(t, rdb, core.WithPrefix(prefix))
		opts := []delayqueue.Option{delayqueue.WithPrefix(prefix)}
		if r.keyring != nil {
			opts = append(opts, delayqueue.WithEncryption(*r.keyring))
		}
		names := r.queues
		if names == nil {
			names = []string{"ship"}
		}
		if parks[prefix] != nil {
			names = nil
		}
		for _, name := range names {
			own := slices.Clip(opts)
			if name != "ship" {
				own = append(own, delayqueue.WithPartitions(4))
			}
			q, err := delayqueue.New(rdb, name, own...)
			require.NoError(t, err)
			queues[prefix+" "+name], parks[prefix], s.queue = q, q, q
			worker, err := delayqueue.NewWorker(q, locker, httplock.Replay(mux, r.replay...), delayqueue.WithLogger(quiet), delayqueue.WithObserver(s))
			require.NoError(t, err)
			require.NoError(t, worker.Start())
			t.Cleanup(func() { assert.NoError(t, worker.Stop(context.Background())) })
			s.worker = append(s.worker, worker)
		}
		var guarding []core.AcquireOption
		if r.counted > 0 {
			guarding = append(guarding, core.Counted(r.counted))
		}
		guard := []httplock.Option{httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous(), httplock.WithLogger(quiet)}
		if r.sealed && i == 0 {
			opts := []idempotency.Option{idempotency.WithPrefix(prefix)}
			if r.keyring != nil {
				opts = append(opts, idempotency.WithEncryption(*r.keyring))
			}
			store, err := idempotency.New(rdb, opts...)
			require.NoError(t, err)
			guard = append(guard, httplock.WithIdempotency(store))
		}
		h = httplock.PerKey(locker.Guard(delayqueue.Policy(parks[prefix]), guarding...), func(r *http.Request) (string, error) { return text + r.PathValue("id"), nil }, guard...)(h)
	}
	mux.Handle("POST "+s.route+"{id}", h)
	tickets := map[string]http.Handler{}
	for name, q := range queues {
		tickets[name] = httplock.TicketHandler(q, anyone)
	}
	mux.HandleFunc("GET /tickets/", func(w http.ResponseWriter, r *http.Request) {
		var answer testbed.Answer
		for _, h := range tickets { // of two queues one has it
			if answer = testbed.Do(h, r); answer.Status != http.StatusNotFound {
				break
			}
		}
		w.Header().Set("Location", answer.Header.Get("Location"))
		w.WriteHeader(answer.Status)
		_, _ = io.WriteString(w, answer.Body)
	})
	return s
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	for _, w := range s.worker {
		require.NoError(t, w.Stop(context.Background()))
	}
}

// next is a request's number, and a gate for it if it is to hold its key.
func (d *deployment) next(holds bool) (n string, g *gate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	n = fmt.Sprint(d.number)
	if holds {
		g = &gate{entered: make(chan struct{}), leave: make(chan struct{})}
		d.gates[n] = g
	}
	return n, g
}

func (d *deployment) send(s *server, order, n string) testbed.Answer {
	r := testbed.Request(d.t, http.MethodPost, s.route+order+"?n="+n, "{}")
	r.Header.Set("Idempotency-Key", "request-"+n) // read where there is a store
	return testbed.Do(s, r)
}

// hold has a request hold the key of an order, until release is called, which returns what its client is answered.
func (d *deployment) hold(s *server, order string) (n string, release func() testbed.Answer) {
	d.t.Helper()
	request, g := d.next(true)
	answered := make(chan testbed.Answer, 1)
	go func() { answered <- d.send(s, order, request) }()
	select {
	case <-g.entered:
	case answer := <-answered:
		assert.Fail(d.t, "it holds nothing", "%d %s", answer.Status, answer.Body)
		answered <- answer
		close(g.entered)
	}
	return request, sync.OnceValue(func() testbed.Answer {
		close(g.leave)
		return <-answered
	})
}

// parked is a request whose client was answered 202.
type parked struct{ n, ticket string }

// park has a request meet the holder of its order's key.
func (d *deployment) park(s *server, order string) parked {
	n, _ := d.next(false)
	answer := d.send(s, order, n)
	assert.Equal(d.t, http.StatusAccepted, answer.Status, answer.Body)
	return parked{n, answer.Header.Get("Location")}
}

// ends awaits the result of a parked request, as its client does, at any of the servers.
func (d *deployment) ends(p parked, servers ...*server) {
	if p.ticket == "" {
		return // park said so
	}
	var answer testbed.Answer
	for give := time.Now().Add(time.Minute); time.Now().Before(give); time.Sleep(5 * time.Millisecond) {
		for _, s := range servers {
			answer = testbed.Call(d.t, s, http.MethodGet, p.ticket, "")
			if answer.Status != http.StatusOK {
				break
			}
		}
		if answer.Status != http.StatusOK {
			break
		}
	}
	if !assert.Equal(d.t, http.StatusSeeOther, answer.Status, answer.Body) {
		return
	}
	for _, s := range servers {
		answer = testbed.Call(d.t, s, http.MethodGet, p.ticket+"/result", "")
		assert.Equal(d.t, http.StatusOK, answer.Status, answer.Body)
		assert.Equal(d.t, "paid "+p.n, answer.Body)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Equal(d.t, 1, d.runs[p.n], "request %s runs once", p.n)
}

// meet has requests at one server meet those that hold their keys at another one, many at once. Again: what has an Idempotency-Key
// is answered by both when it comes again.
func (d *deployment) meet(holder, other *server, again bool) {
	d.t.Helper()
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			order, _ := d.next(false)
			n, release := d.hold(holder, order)
			some := []parked{d.park(other, order), d.park(other, order)}
			answer := release()
			assert.Equal(d.t, [2]any{http.StatusOK, "paid " + n}, [2]any{answer.Status, answer.Body})
			for _, p := range some {
				d.ends(p, holder, other)
			}
			for _, s := range []*server{holder, other} {
				if again {
					answer := d.send(s, order, n)
					assert.Equal(d.t, [3]any{http.StatusOK, "paid " + n, "true"}, [3]any{answer.Status, answer.Body, answer.Header.Get("Idempotent-Replayed")})
				}
			}
		})
	}
	clients.Wait()
}

// besides plays two releases side by side.
func (d *deployment) besides(a, b release) {
	d.t.Helper()
	x, y := d.start(a), d.start(b)
	d.meet(x, y, a.sealed)
	d.meet(y, x, a.sealed)
	x.stop(d.t)
	y.stop(d.t)
}

var order = [2]string{"", "order:"}

// What the rows of docs/howto/rolling-deployment.md say, by the beginnings of the changes.
var deployments = map[string]func(*testing.T){
	"the text of a key": func(t *testing.T) {
		renamed := [2]string{"", "shop-order:"}
		d := newDeployment(t)
		d.besides(release{keys: [][2]string{order}}, release{keys: [][2]string{order, renamed}})
		d.besides(release{keys: [][2]string{order, renamed}}, release{keys: [][2]string{renamed}})
	},
	"the prefix": func(t *testing.T) {
		moved := [2]string{"moved", "order:"}
		d := newDeployment(t)
		d.besides(release{keys: [][2]string{order}}, release{keys: [][2]string{order, moved}})
		d.besides(release{keys: [][2]string{order, moved}}, release{keys: [][2]string{moved}})
	},
	"`core.Counted(n)`": func(t *testing.T) {
		d := newDeployment(t)
		d.most = 3
		two, three := d.start(release{keys: [][2]string{order}, counted: 2}), d.start(release{keys: [][2]string{order}, counted: 3})
		_, first := d.hold(two, "1")
		_, second := d.hold(three, "1")
		_, third := d.hold(three, "1") // by what the other counts there is no room
		left := []parked{d.park(two, "1"), d.park(three, "1")}
		for _, release := range []func() testbed.Answer{first, second, third} {
			require.Equal(t, http.StatusOK, release().Status)
		}
		for _, p := range left {
			d.ends(p, two, three)
		}
	},
	"a new route that parks": func(t *testing.T) {
		d := newDeployment(t)
		old, added := d.start(release{keys: [][2]string{order}}), d.start(release{keys: [][2]string{order}, route: "/added/"})
		d.meet(added, added, false)
		d.meet(old, old, false)
	},
	"a route renamed": func(t *testing.T) {
		d := newDeployment(t)
		old := d.start(release{keys: [][2]string{order}})
		_, free := d.hold(old, "1")
		left := d.park(old, "1")
		old.stop(t)
		renamed := d.start(release{keys: [][2]string{order}, route: "/renamed/", replay: []httplock.ReplayOption{httplock.WithTargetRewrite(func(_, target string) string {
			return strings.Replace(target, "/orders/", "/renamed/", 1)
		})}})
		require.Equal(t, http.StatusOK, free().Status)
		d.ends(left, old, renamed)
	},
	"encryption of a queue": func(t *testing.T) {
		d := newDeployment(t)
		keys := map[string][]byte{"k": bytes.Repeat([]byte{'k'}, 32)}
		with := func(k *delayqueue.Keyring) release {
			return release{keys: [][2]string{order}, keyring: k, sealed: true}
		}
		known := with(&delayqueue.Keyring{Keys: keys, AcceptUnsealed: true})
		seals := with(&delayqueue.Keyring{Keys: keys, AcceptUnsealed: true, Current: "k"})
		strict := with(&delayqueue.Keyring{Keys: keys, Current: "k"})
		d.besides(with(nil), known)
		d.besides(known, seals)

		// Something unsealed is left when the last deployment begins: those of the one before run it.
		was := d.start(known)
		_, free := d.hold(was, "left")
		require.NoError(t, was.queue.Pause(t.Context(), time.Hour)) // before it is parked: what was claimed would still run here
		left := d.park(was, "left")
		require.Equal(t, http.StatusOK, free().Status)
		was.stop(t)
		last := d.start(strict)
		require.NoError(t, was.queue.Resume(t.Context()))
		redistest.Eventually(t, func() bool { return last.returned.Load() > 0 }, "it is left to others")
		before := d.start(seals)
		d.meet(last, before, true)
		d.meet(before, last, true)
		d.ends(left, before, last)
	},
	"the number of partitions": func(t *testing.T) {
		d := newDeployment(t)
		serving := func(queues ...string) release { return release{keys: [][2]string{order}, queues: queues} }
		d.besides(serving("ship"), serving("ship-4", "ship"))
		d.besides(serving("ship-4", "ship"), serving("ship", "ship-4"))
		d.besides(serving("ship", "ship-4"), serving("ship-4"))
	},
	"the version of perkey": nil, // see core's tests of older versions
}

// Whoever is answered by old and new replicas side by side gets 200 or 202, and what is parked ends as if it had not been.
func TestDeployment_ClientsOfEachRowGetWhatTheyAskFor(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/howto/rolling-deployment.md")
	require.NoError(t, err)
	_, rows, _ := strings.Cut(string(doc), "|---|---|\n")
	played := 0
	for row := range strings.Lines(rows) {
		change, is := strings.CutPrefix(row, "| ")
		if !is {
			break
		}
		names := slices.Sorted(maps.Keys(deployments))
		at := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(change, name) })
		require.GreaterOrEqual(t, at, 0, "nobody plays: %s", change)
		name := names[at]
		played++
		if play := deployments[name]; play != nil {
			t.Run(strings.Trim(name, "`"), func(t *testing.T) {
				t.Parallel()
				play(t)
			})
		}
	}
	require.Len(t, deployments, played)
}
