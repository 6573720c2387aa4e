package httplock_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
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
	"github.com/perkey-go/perkey/retry"
)

// What cannot be kept whole is not answered in part, and its request is not run again.
// It is long since most of it is a table.
func TestIdempotency_ResponsesThatAreNotStored(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	file := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("f", 11)), 0o600))
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		kept    bool
	}{
		"at the cap": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "01234")
			_, _ = io.WriteString(w, "56789")
		}, true},
		"over the cap": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "0123456789a") }, false},
		"over the cap, bit by bit": {func(w http.ResponseWriter, _ *http.Request) {
			for range 11 {
				_, _ = io.WriteString(w, "0")
			}
		}, false},
		"from a file": {func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) }, false},
		"flushed by a controller, without a word": {func(w http.ResponseWriter, _ *http.Request) {
			assert.NoError(t, http.NewResponseController(w).Flush())
		}, false},
		"broken off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "0")
		}, false},
		"of a length that it told": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "01")
		}, true},
		"with a trailer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = io.WriteString(w, "0")
			w.Header().Set("Grpc-Status", "0")
		}, false},
		"with a trailer that it did not announce": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "0")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}, false},
		"begun in front": {ok, false},
	} {
		var runs atomic.Int64
		h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			test.handler(w, r)
		}, httplock.KeepResponseBody(10))
		front := http.Handler(h)
		if name == "begun in front" { // as ServeMux cannot, some frameworks can
			m, err := httplock.New(b.Locker.Guard(core.RejectConflicts), remembering(newIdempotency(t, b)))
			require.NoError(t, err)
			front = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				m.Serve(httplock.Exchange{
					Writer: w, Request: r, Key: func() (string, error) { return "k", nil },
					Next: func(r *http.Request) { test.handler(w, r); runs.Add(1) }, Written: func() bool { return runs.Load() == 0 },
					Tee: func(wrap func(http.ResponseWriter) http.ResponseWriter, _ bool) { w = wrap(w) },
				})
			})
		}
		url, client := testbed.Serve(t, front)
		post := func() testbed.Answer {
			r := testbed.ToServer(t.Context(), t, url+testbed.OrderPath, "{}")
			r.Header.Set("Idempotency-Key", `"`+name+`"`)
			resp, err := testbed.Send(client, r)
			if name != "broken off" {
				require.NoError(t, err, name)
			}
			return resp
		}
		first, second := post(), post()
		require.EqualValues(t, 1, runs.Load(), name)
		if test.kept {
			requireReplayed(t, first, second)
			continue
		}
		require.Equal(t, http.StatusOK, first.Status, name)
		testbed.RequireProblem(t, second, http.StatusConflict, "response-not-kept", false)
		require.NotContains(t, second.Header, "Idempotent-Replayed")
	}
}

// A client that is cut off comes back for the whole response.
func TestIdempotency_ClientThatLeftGetsItsResponse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		body := bytes.Repeat([]byte("0123456789"), 5000)
		var runs atomic.Int64
		started, returned := make(chan struct{}), make(chan struct{}, 1)
		status := http.StatusOK
		h := idempotent(t, b, retry.Policy{MaxWait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				close(started)
				<-r.Context().Done()
			}
			w.WriteHeader(status)
			for part := range 50 {
				n, err := w.Write(body[1000*part : 1000*(part+1)])
				assert.NoError(t, err)
				assert.Equal(t, 1000, n)
			}
		})
		url, client := testbed.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			returned <- struct{}{}
		}))
		post := func(ctx context.Context) (testbed.Answer, error) {
			r := testbed.ToServer(ctx, t, url+testbed.OrderPath, "{}")
			r.Header.Set("Idempotency-Key", "k")
			return testbed.Send(client, r)
		}
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-started
			leave()
		}()
		_, err := post(ctx)
		require.ErrorIs(t, err, context.Canceled)
		<-returned
		resp, err := post(t.Context())
		require.NoError(t, err)
		require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
		require.Equal(t, string(body), resp.Body)
		require.EqualValues(t, 1, runs.Load())
	})
}

func TestIdempotency_HandlerThatGaveUpIsRunAgain(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for name, give := range map[string]http.HandlerFunc{
		"an error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "interrupted", http.StatusBadRequest) },
		"a part of a stream": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
		},
		"nothing": func(http.ResponseWriter, *http.Request) {},
	} {
		ctx, leave := context.WithCancel(t.Context())
		var runs atomic.Int64
		h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				leave()
				give(w, r)
				return
			}
			ok(w, r)
		})
		testbed.Do(h, withKey(t, testbed.OrderPath, `"`+name+`"`, "{}").WithContext(ctx))
		require.Equal(t, "ok", testbed.Do(h, withKey(t, testbed.OrderPath, `"`+name+`"`, "{}")).Body, name)
		require.EqualValues(t, 2, runs.Load(), name)
	}
}

// A response that is too long to be kept is no sign that the handler gave up: the work of
// the client that left, and is the one to come back, is not done twice.
func TestIdempotency_LongResponseToAClientThatLeftIsNotRunAgain(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	ctx, leave := context.WithCancel(t.Context())
	var runs atomic.Int64
	h := guarded(b.Locker.Guard(nil), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave()
		count(&runs, http.StatusCreated)(w, r)
	}), httplock.WithIdempotency(newIdempotency(t, b), httplock.KeepResponseBody(3)), httplock.WithConflictHandler(func(http.ResponseWriter, *http.Request, *httplock.Problem) {
		assert.Fail(t, "no key is held: to try again does not help")
	}))
	require.Equal(t, "run 1", testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}").WithContext(ctx)).Body)
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusConflict, "response-not-kept", false)
	require.EqualValues(t, 1, runs.Load())
}

// Middleware in front that compresses says so in the header that the handler has, and some
// says it beforehand. What is kept was not compressed yet.
func TestIdempotency_EncodingsInFrontAreNotStored(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var encoded atomic.Bool
	inner := idempotent(t, b, nil, ok)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if encoded.Load() {
			w.Header().Set("Content-Encoding", "gzip")
		}
		inner.ServeHTTP(w, r)
	})
	for _, first := range []bool{true, false} {
		key := fmt.Sprintf("%q", fmt.Sprint(first))
		encoded.Store(first)
		require.Equal(t, "ok", testbed.Do(h, withKey(t, testbed.OrderPath, key, "{}")).Body)
		for _, again := range []bool{true, false} {
			encoded.Store(again)
			resp := testbed.Do(h, withKey(t, testbed.OrderPath, key, "{}"))
			require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
			require.Equal(t, again, resp.Header.Get("Content-Encoding") == "gzip")
		}
	}
}

// What a guard behind says is not what came of the request.
func TestIdempotency_RefusalsOfAnInnerGuardAreNotStored(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	inner := func(next http.Handler) http.Handler {
		key := func(*http.Request) (string, error) { return "inner", nil }
		return httplock.PerKey(b.Locker.Guard(&testbed.Parking{}), key)(next)
	}
	mux := http.NewServeMux()
	opt := remembering(newIdempotency(t, b))
	shop := func(*http.Request) (string, error) { return "shop", nil }
	mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, opt)(
		// One that looks at the header too, for another lock, leaves it to the outer one.
		inner(httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.IdempotencyKey, opt)(
			httplock.PerKey(b.Locker.Guard(core.RejectConflicts), shop, opt)(http.HandlerFunc(ok))))))
	release := b.HoldKey(t, "inner")
	require.Equal(t, http.StatusAccepted, testbed.Do(mux, withKey(t, testbed.OrderPath, "k", "{}")).Status)
	release()
	first := testbed.Do(mux, withKey(t, testbed.OrderPath, "k", "{}"))
	require.Equal(t, "ok", first.Body)
	requireReplayed(t, first, testbed.Do(mux, withKey(t, testbed.OrderPath, "k", "{}")))
}

// What a handler asks of its own service, under another key, is a request by itself.
func TestIdempotency_RequestOfAHandlerHasItsOwnKey(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	opt := remembering(newIdempotency(t, b))
	guarded := func(key httplock.KeyFunc, next http.HandlerFunc) http.Handler {
		return httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, opt)(next)
	}
	orders, batches := 0, 0
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", guarded(orderKey, func(w http.ResponseWriter, _ *http.Request) {
		orders++
		_, _ = fmt.Fprint(w, "order ", orders)
	}))
	mux.Handle("/batches", guarded(httplock.IdempotencyKey, func(w http.ResponseWriter, r *http.Request) {
		batches++
		item := testbed.Do(mux, withKey(t, testbed.OrderPath, "item", "{}").WithContext(r.Context()))
		_, _ = fmt.Fprint(w, "batch ", batches, ": ", item.Body)
	}))
	for _, key := range []string{"first-batch", "second-batch"} { // the second finds the order made
		batch := testbed.Do(mux, withKey(t, "/batches", key, "[{}]"))
		require.Equal(t, fmt.Sprint("batch ", batches, ": order 1"), batch.Body)
		requireReplayed(t, batch, testbed.Do(mux, withKey(t, "/batches", key, "[{}]")))
	}
	order := testbed.Do(mux, withKey(t, testbed.OrderPath, "item", "{}"))
	require.Equal(t, "order 1", order.Body)
	require.Equal(t, "true", order.Header.Get("Idempotent-Replayed"))
	require.Equal(t, []int{2, 1}, []int{batches, orders})
}

// A refusal anywhere behind a handler's own request says how things stood, as that of the
// guard that the request met first does: what the handler made of it is not kept.
func TestIdempotency_RefusalsBehindARequestOfAHandlerAreNotStored(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	opt := remembering(newIdempotency(t, b))
	guarded := func(key string, next http.Handler, opts ...httplock.Option) http.Handler {
		return httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return key, nil }, opts...)(next)
	}
	for _, busy := range []string{"order", "stock"} {
		mux := http.NewServeMux()
		mux.Handle("/orders/{id}", guarded("order", guarded("stock", http.HandlerFunc(ok)), opt))
		mux.Handle("/batches", guarded("batch", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			item := testbed.Do(mux, withKey(t, testbed.OrderPath, "item-of-"+busy, "{}").WithContext(r.Context()))
			_, _ = fmt.Fprint(w, "order: ", item.Status)
		}), opt))
		release := b.HoldKey(t, busy)
		require.Equal(t, "order: 409", testbed.Do(mux, withKey(t, "/batches", busy, "[{}]")).Body)
		release()
		first := testbed.Do(mux, withKey(t, "/batches", busy, "[{}]"))
		require.Equal(t, "order: 200", first.Body, busy)
		requireReplayed(t, first, testbed.Do(mux, withKey(t, "/batches", busy, "[{}]")))
	}
}

// It belongs to whom it did when the handler ran for a request from outside: in a replay,
// too, it is found to be made, and not taken for another's.
func TestIdempotency_PrincipalOfARequestThatAReplayMakes(t *testing.T) {
	tenant := func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }
	for name, test := range map[string]struct {
		whose   httplock.Option
		client  bool // the handler hands the client's credentials on
		without bool // only the handler's own request has an Idempotency-Key
	}{
		"its own principal's":                          {whose: httplock.WithPrincipal(tenant)},
		"its own principal's, the only one with a key": {whose: httplock.WithPrincipal(tenant), without: true},
		"the client's":                                 {whose: httplock.WithPrincipal(bearer), client: true},
		"the client's, the only one with a key":        {whose: httplock.WithPrincipal(bearer), client: true, without: true},
		"nobody's":                                     {whose: httplock.WithAnonymous()},
		"nobody's, the only one with a key":            {whose: httplock.WithAnonymous(), without: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := openParking(t, redistest.Embedded(t))
			store := newIdempotency(t, d.Fixture)
			var orders atomic.Int64
			d.mux.Handle("/orders/{id}", httplock.PerKey(d.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithIdempotency(store), test.whose)(count(&orders, 200)))
			batch := httplock.PerKey(d.guard, func(*http.Request) (string, error) { return "batch", nil }, httplock.WithStatusPath("/tickets/"),
				sentBy(bearer, anybody), httplock.WithIdempotency(store))
			d.mux.Handle("/batches", batch(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, tenant := range []string{"a", "b"} {
					item := withKey(t, testbed.OrderPath, "item", "{}").WithContext(r.Context())
					if test.client {
						item.Header["Authorization"] = r.Header["Authorization"]
					}
					if item.Header.Set("X-Tenant", tenant); !strings.HasPrefix(name, "its own") {
						item.Header.Set("Idempotency-Key", "item-"+tenant)
					}
					_, _ = fmt.Fprint(w, testbed.Do(d.mux, item).Body, "; ")
				}
			})))
			post := func(key string) testbed.Answer {
				r := withKey(t, "/batches", key, "[{}]")
				if test.without {
					r.Header.Del("Idempotency-Key")
				}
				r.Header.Set("Authorization", "Bearer "+testbed.Secret)
				return testbed.Do(d.mux, r)
			}
			require.Equal(t, "run 1; run 2; ", post("first").Body)
			release := d.HoldKey(t, "batch")
			location := requireParked(t, post("second"))
			release()
			d.work(t)
			require.Equal(t, "run 1; run 2; ", d.result(t, location).Body)
			require.EqualValues(t, 2, orders.Load())
		})
	}
}

func TestIdempotency_AdapterWithoutTeeRunsNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	log := &testbed.Log{}
	m, err := httplock.New(b.Locker.Guard(core.RejectConflicts), remembering(newIdempotency(t, b)), httplock.WithLogger(log.Logger()))
	require.NoError(t, err)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.Serve(httplock.Exchange{
			Writer: w, Request: r, Key: func() (string, error) { return "k", nil },
			Next: func(r *http.Request) { ok(w, r) },
		})
	})
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, "/", "k", "")), http.StatusInternalServerError, "misconfigured", false)
	require.Contains(t, log.String(), "Tee")
	require.Equal(t, "ok", testbed.Call(t, h, http.MethodPost, "/", "").Body, "what has no key runs")
}

// Requests with one Idempotency-Key that are parked at the same time are one message. If they were several, they would run once.
func TestIdempotency_RequestsParkedAtOnceAreOneMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d, replica := openParking(t, env), openParking(t, env)
		var runs atomic.Int64
		for _, d := range []*parkingSite{d, replica} {
			d.handle(count(&runs, http.StatusOK), httplock.WithIdempotency(newIdempotency(t, d.Fixture)))
		}
		release := d.Hold(t)
		park := func(d *parkingSite) string {
			return testbed.Do(d.mux, withKey(t, testbed.OrderPath, "k", "{}")).Header.Get("Location")
		}
		forget := func() { // as if those before had not come so far yet, or died before
			for _, name := range redistest.Keys(t, d.Redis, d.Prefix+":idem{}:") {
				require.NoError(t, d.Redis.Del(t.Context(), name).Err())
			}
		}
		cancelled := park(d)
		require.Equal(t, http.StatusNoContent, testbed.Call(t, d.mux, http.MethodDelete, cancelled, "").Status)
		forget()
		location := park(d)
		require.NotEqual(t, cancelled, location, "what has ended is parked anew")
		var all sync.WaitGroup
		for range 10 {
			for _, d := range []*parkingSite{d, replica} {
				all.Go(func() { assert.Equal(t, location, park(d)) })
			}
			forget()
		}
		all.Wait()
		stats, err := d.queue.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, stats.Queued)
		payload, err := d.queue.Payload(t.Context(), strings.TrimPrefix(location, "/tickets/"))
		require.NoError(t, err)
		other, err := d.queue.Enqueue(t.Context(), delayqueue.Job{Key: testbed.OrderKey, Name: d.status(t, location).Name, Payload: payload})
		require.NoError(t, err)
		forget()
		third := requireParked(t, testbed.Do(d.mux, withKey(t, testbed.OrderPath, "k", "{other}")))
		forget()
		release()
		d.work(t)
		require.Equal(t, "run 1", d.result(t, location).Body)
		require.Equal(t, "run 1", d.result(t, "/tickets/"+other.ID).Body)
		require.Equal(t, http.StatusUnprocessableEntity, d.result(t, third).Status, "another payload under the key is a result too")
		require.EqualValues(t, 1, runs.Load())
	})
}

// What says what is asked for is parked, whatever a client says of its connection: else the replay would be another request.
func TestIdempotency_HeadersOfTheConnectionAreParked(t *testing.T) {
	d := openParking(t, redistest.Embedded(t))
	var runs atomic.Int64
	d.handle(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.WriteString(w, r.FormValue("amount")+r.Header.Get("If-Match"))
	}, httplock.WithIdempotency(newIdempotency(t, d.Fixture)))
	post := func() testbed.Answer {
		r := described(t, "k", "application/x-www-form-urlencoded", "note=1&amount=5")
		r.Header.Set("If-Match", `"1"`)
		r.Header.Set("Connection", "close, content-type, if-match, idempotency-key")
		return testbed.Do(d.mux, r)
	}
	release := d.Hold(t)
	location := requireParked(t, post())
	release()
	d.work(t)
	require.Equal(t, `5"1"`, d.result(t, location).Body)
	require.Equal(t, `5"1"`, post().Body)
	require.EqualValues(t, 1, runs.Load())
}

func TestIdempotency_TicketIsGoodUntilItExpires(t *testing.T) {
	d := openParking(t, redistest.Embedded(t), delayqueue.WithMaxAge(time.Second))
	d.handle(ok, httplock.WithIdempotency(newIdempotency(t, d.Fixture)))
	d.Hold(t)
	location := requireParked(t, testbed.Do(d.mux, withKey(t, testbed.OrderPath, "k", "{}")))
	redistest.Eventually(t, func() bool {
		return requireParked(t, testbed.Do(d.mux, withKey(t, testbed.OrderPath, "k", "{}"))) != location
	}, "it is parked anew")
}

// The clients' secrets are in no record, and everything in Redis ends by itself.
func TestIdempotency_RecordsHoldNoSecrets(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		who := func(*http.Request) (string, error) { return "principal-" + testbed.Secret, nil }
		m := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.IdempotencyKey,
			httplock.WithIdempotency(newIdempotency(t, b)), httplock.WithPrincipal(who))
		scan := func() {
			for _, name := range redistest.Keys(t, b.Redis, b.Prefix) {
				left, err := b.Redis.PTTL(context.Background(), name).Result()
				assert.NoError(t, err)
				assert.Positive(t, left, name)
				text, err := b.Redis.Get(context.Background(), name).Result() // a lock's record
				if err != nil {
					var all map[string]string
					all, err = b.Redis.HGetAll(context.Background(), name).Result()
					text = fmt.Sprint(all)
				}
				assert.NoError(t, err)
				assert.NotContains(t, name+text, testbed.Secret)
			}
		}
		h := m(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			scan()
			w.Header().Set("Set-Cookie", testbed.Secret)
			w.Header().Set("X-Token", testbed.Secret)
			_, _ = io.WriteString(w, "fine")
		}))
		r := withKey(t, "/?token="+testbed.Secret, `"`+testbed.Secret+`"`, "body "+testbed.Secret)
		r.Header.Set("Authorization", testbed.Secret)
		r.Header.Set("Cookie", testbed.Secret)
		first := testbed.Do(h, r)
		require.Equal(t, "fine", first.Body)
		require.Len(t, redistest.Keys(t, b.Redis, b.Prefix+":idem{}:"), 1)
		scan()
	})
}

// A process with the wrong key runs nothing twice, parks nothing twice, and says why in its log.
func TestSealed_ResponsesNeedTheirKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		var runs atomic.Int64
		server := func(policy core.ConflictPolicy, id string, key byte) (http.Handler, *testbed.Log) {
			said := &testbed.Log{}
			keys := idempotency.Keyring{Current: id, Keys: map[string][]byte{id: bytes.Repeat([]byte{key, 0xff}, 16)}}
			h := guarded(d.Locker.Guard(policy), func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "receipt "+testbed.Secret)
			}, httplock.WithIdempotency(newIdempotency(t, d.Fixture, idempotency.WithEncryption(keys))), httplock.WithLogger(said.Logger()))
			return h, said
		}
		right, _ := server(nil, "k1", 'a')
		first := testbed.Do(right, withKey(t, testbed.OrderPath, "k", "{}"))
		requireReplayed(t, first, testbed.Do(right, withKey(t, testbed.OrderPath, "k", "{}")))
		for _, name := range redistest.Keys(t, d.Redis, d.Prefix+":idem{}:") {
			stored, err := d.Redis.HGet(t.Context(), name, "outcome").Result()
			require.NoError(t, err)
			require.NotContains(t, stored, testbed.Secret)
		}
		for why, key := range map[string]struct {
			id   string
			with byte
		}{`add key \"k1\" to the Keyring`: {"k2", 'b'}, `sealed under another key \"k1\"`: {"k1", 'b'}} {
			for _, policy := range []core.ConflictPolicy{nil, delayqueue.Policy(d.queue)} {
				wrong, said := server(policy, key.id, key.with)
				for _, release := range []func(){d.Hold(t), func() {}} {
					resp := testbed.Do(wrong, withKey(t, testbed.OrderPath, "k", "{}"))
					testbed.RequireProblem(t, resp, http.StatusInternalServerError, "misconfigured", false)
					release()
					d.RequireFree(t)
				}
				require.Contains(t, said.String(), why)
				require.NotContains(t, said.String(), "receipt")
			}
		}
		require.EqualValues(t, 1, runs.Load())
		d.requireNothingParked(t)
	})
}
