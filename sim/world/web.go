//go:build faketime

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/retry"
)

// web is a world of replicas of a service, and of clients who pay under an Idempotency-Key, and ask again until they have an answer.
func (w *world) web() {
	r := newChance(w.config.Seed, 6)
	s := &webWorkload{w: w, r: r, auditor: newAuditor(w), services: map[*process]*service{}, payments: map[string]*payment{}, stored: stored{payments: map[string]*payment{}}, policy: r.IntN(3)}
	w.startAll(s.work, s.stop)
	s.settle()
}

type webWorkload struct {
	w        *world
	r        chance
	auditor  *auditor
	policy   int
	services map[*process]*service
	payments map[string]*payment
	stored   stored
	clients  int // who have no answer yet
}

// service is the part of a process that serves.
type service struct {
	handler http.Handler
	queue   *delayqueue.Queue
	worker  *delayqueue.Worker
}

// payment is one Idempotency-Key.
type payment struct {
	id, order string
	runs      int
	stored    time.Time // when a response was, as far as its process was told
	done      time.Time // when it last ended with a response
	repeated  string    // what a repetition was told
	told      time.Time // when
}

// stored is told by the processes which responses were stored.
type stored struct {
	idempotency.NopObserver
	payments map[string]*payment // by the names of their records
}

func (s stored) OnEvent(_ context.Context, e idempotency.Event) {
	if pay := s.payments[e.Name]; pay != nil && e.Kind == idempotency.EventStored {
		pay.stored = time.Now()
	}
}

func (s *webWorkload) work(p *process) {
	queue, err := delayqueue.New(p.rdb, "q", delayqueue.WithMaxAge(5*time.Minute))
	if err != nil {
		panic(err)
	}
	store, err := idempotency.New(p.rdb, idempotency.WithObserver(s.stored))
	if err != nil {
		panic(err)
	}
	policy := []core.ConflictPolicy{core.RejectConflicts, retry.Policy{MaxWait: 2 * time.Second}, delayqueue.Policy(queue)}[s.policy]
	guard := httplock.PerKey(p.locker.Guard(policy), httplock.Param("order:", "id"),
		httplock.WithIdempotency(store), httplock.WithAnonymous(), httplock.WithStatusPath("/tickets/"), httplock.WithLogger(discard))
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.pay(p, w, r) })))
	mux.Handle("/tickets/", httplock.TicketHandler(queue, func(*http.Request, delayqueue.Status) bool { return true }))
	worker, err := delayqueue.NewWorker(queue, p.locker, httplock.Replay(mux), delayqueue.WithClaimLease(s.r.between(time.Second, 6*time.Second)), delayqueue.WithLogger(discard))
	if err != nil {
		panic(err)
	}
	if err := worker.Start(); err != nil {
		panic(err)
	}
	s.services[p] = &service{handler: mux, queue: queue, worker: worker}
	for c := range 3 {
		as(0, func() { go s.client(fmt.Sprintf("%s.%d", p.name, c)) }) // it outlives the process
	}
}

// pay is the handler: each run has an answer of its own.
func (s *webWorkload) pay(p *process, w http.ResponseWriter, r *http.Request) {
	pay := s.payments[r.Header.Get("Idempotency-Key")]
	if body := new(bytes.Buffer); pay == nil || r.PathValue("id") != pay.order {
		s.w.violation(p.name, "a request that nobody made: %s %s", r.URL, r.Header)
		return
	} else if _, err := body.ReadFrom(r.Body); err == nil && body.String() != pay.id {
		s.w.violation(p.name, "the body of %s is %q", pay.id, body)
	}
	pay.runs++
	who, answer := p.name+":"+pay.id, fmt.Sprintf("%s, run %d", pay.id, pay.runs)
	s.w.emit(who, "runs", pay.order, answer)
	if !pay.stored.IsZero() && !s.lost(pay) {
		s.w.violation(who, "it runs again %s after its response was stored", time.Since(pay.stored))
	}
	if !pay.done.IsZero() && s.w.quiet(pay.done) {
		s.w.violation(who, "it runs again %s after it was done, and nothing failed", time.Since(pay.done))
	}
	if !pay.done.IsZero() && s.w.spared(pay.done, "full", "forget", "deaf", "busy") {
		s.w.violation(who, "it runs again %s after it was done, and Redis was full at most", time.Since(pay.done))
	}
	lease, _ := core.LeaseFrom(r.Context())
	in := under(p, who, lease)
	in.again = true
	s.auditor.enter(pay.order, in)
	defer s.auditor.leave(pay.order, in)
	select {
	case <-time.After(s.r.between(time.Millisecond, pick(s.r, 20*time.Millisecond, time.Second))):
	case <-r.Context().Done():
	}
	_, parked := httplock.Replayed(r.Context())
	switch {
	case parked && r.Context().Err() != nil && s.r.one(2): // it gives up
	case !s.w.calm && s.r.one(12):
		w.WriteHeader(http.StatusServiceUnavailable)
	case !s.w.calm && s.r.one(30):
		panic(http.ErrAbortHandler)
	case s.r.one(6):
		w.WriteHeader(http.StatusPaymentRequired)
		fallthrough
	default:
		if r.Context().Err() == nil { // else it may be half of one
			pay.done = time.Now()
		}
		fmt.Fprint(w, answer)
	}
}

// lost reports whether Redis may have lost the response of a payment.
func (s *webWorkload) lost(pay *payment) bool { return pay.stored.Before(s.w.lostAt) }

// client pays, again and again.
func (s *webWorkload) client(name string) {
	for n := 0; !s.w.calm; n++ {
		time.Sleep(s.r.between(0, 2*time.Second))
		pay := &payment{id: fmt.Sprintf("%s.%d", name, n), order: pick(s.r, "order:1", "order:2", "order:3")[6:]}
		s.payments[`"`+pay.id+`"`] = pay
		s.stored.payments[idempotency.NameOf("POST /orders/{id}/pay", "", pay.id)] = pay
		s.clients++
		for !s.send(pay) || !s.w.calm && s.r.one(3) { // some ask once more
			time.Sleep(s.r.between(0, 1500*time.Millisecond))
		}
		s.clients--
	}
}

// send sends a payment to some process, and reports whether it was answered.
func (s *webWorkload) send(pay *payment) (answered bool) {
	p := pick(s.r, s.w.alive()...)
	ctx, leave := context.WithTimeout(context.Background(), s.r.between(20*time.Millisecond, 6*time.Second))
	defer leave()
	s.w.report.Calls["pay"]++
	w := s.serve(ctx, p, http.MethodPost, "/orders/"+pay.order+"/pay", pay)
	if w == nil {
		s.w.emit(pay.id, "leaves", pay.order)
		return false
	}
	if s.r.one(10) { // the response is lost
		return false
	}
	body := w.Body.String()
	s.w.emit(pay.id, "answer", pay.order, w.Code, " ", strings.SplitN(body, "\n", 2)[0])
	s.w.report.Calls[fmt.Sprint(w.Code)]++
	switch w.Code {
	case http.StatusOK, http.StatusPaymentRequired:
		if !strings.HasPrefix(body, pay.id+",") {
			s.w.violation(pay.id, "it was told %d %q", w.Code, body)
		}
		if w.Header().Get("Idempotent-Replayed") == "true" {
			if pay.repeated != "" && pay.repeated != body && !pay.told.Before(s.w.lostAt) {
				s.w.violation(pay.id, "a repetition was told %q, and now %q", pay.repeated, body)
			}
			pay.repeated, pay.told = body, time.Now()
		}
		return true
	case http.StatusAccepted:
		return s.follow(pay, w.Header().Get("Location"))
	case http.StatusConflict, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	}
	s.w.violation(pay.id, "it was told %d %q", w.Code, body)
	return false
}

// follow asks what became of a payment that was parked. If that is done, its result is what a run of it answered.
func (s *webWorkload) follow(pay *payment, ticket string) (answered bool) {
	for range s.r.IntN(4) {
		time.Sleep(s.r.between(0, 2*time.Second))
		ctx, leave := context.WithTimeout(context.Background(), 6*time.Second)
		w := s.serve(ctx, pick(s.r, s.w.alive()...), http.MethodGet, ticket, pay)
		if w != nil && w.Code == http.StatusSeeOther {
			w = s.serve(ctx, pick(s.r, s.w.alive()...), http.MethodGet, ticket+"/result", pay)
			if w != nil && w.Code < http.StatusInternalServerError && w.Code != http.StatusNotFound {
				s.w.emit(pay.id, "result", pay.order, w.Code, " ", w.Body)
				if answered = strings.HasPrefix(w.Body.String(), pay.id+","); !answered {
					s.w.violation(pay.id, "it is done, and its result is %d %q", w.Code, w.Body)
				}
			}
		}
		leave()
		if answered {
			return true
		}
	}
	return false
}

// serve makes a request to a process, and returns its response; nil if ctx ends before it has one.
func (s *webWorkload) serve(ctx context.Context, p *process, method, path string, pay *payment) *httptest.ResponseRecorder {
	service, done := s.services[p], make(chan *httptest.ResponseRecorder, 1)
	if service == nil {
		return nil
	}
	as(p.group, func() {
		go func() {
			defer func() {
				if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // it is panicked with as it is
					s.w.violation(p.name, "panic: %v", v)
				}
			}()
			r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(pay.id))
			r.Header.Set("Idempotency-Key", `"`+pay.id+`"`)
			w := httptest.NewRecorder()
			service.handler.ServeHTTP(w, r)
			done <- w
		}()
	})
	select {
	case w := <-done:
		return w
	case <-ctx.Done():
		return nil
	}
}

// settle checks that each client has an answer, and that nothing is left in the queue.
func (s *webWorkload) settle() {
	time.Sleep(2 * time.Minute)
	if s.clients > 0 {
		s.w.violation("-", "%d clients have no answer two minutes after the last fault", s.clients)
	}
	alive := s.w.alive()
	last := alive[len(alive)-1]
	as(last.group, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if stats, err := s.services[last].queue.Stats(ctx); err != nil || stats.Queued+stats.Running > 0 {
			s.w.violation("-", "%d queued and %d running in the end: %v", stats.Queued, stats.Running, err)
		}
	})
	s.w.stopAll()
}

func (s *webWorkload) stop(ctx context.Context, p *process) error {
	return errors.Join(s.services[p].worker.Stop(ctx), p.locker.Shutdown(ctx))
}
