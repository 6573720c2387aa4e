// Command 6-console is the shop after the tutorial's last step: those who operate the shop see who holds a key, who waits and what is parked.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/examples/shop/serve"
	"github.com/perkey-go/perkey/examples/shop/store"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
	"github.com/perkey-go/perkey/retry"
	"github.com/perkey-go/perkey/sqlfence"
)

func main() { serve.Main(open) }

func open(rdb redis.UniversalClient, db *sql.DB) (*serve.Shop, error) {
	recorder := ops.NewRecorder() // counts what the process does, and logs what is to be logged
	locker, err := core.New(rdb, core.WithPrefix("shop"), core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(sqlfence.Table{}.Create()); err != nil { // in a service of yours: with its migrations
		return nil, err
	}
	s := &shop{db: db, work: serve.Work}
	counted := httplock.WithObserver(recorder.Requests(nil))
	reject := locker.Guard(core.RejectConflicts)
	order := httplock.ParamInt("order:", "id") // 7 and 007 are one order

	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", httplock.PerKey(reject, order, counted)(serve.Answer(s.pay)))

	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	cart := httplock.ParamInt("cart:", "id")
	mux.Handle("POST /carts/{id}/items", httplock.PerKey(wait, cart, counted)(serve.Answer(s.add)))

	queue, err := delayqueue.New(rdb, "ship",
		delayqueue.WithPrefix("shop"),  // the Locker's
		delayqueue.WithService("shop"), // another service that uses the queue is refused
		delayqueue.WithQueueObserver(recorder.Queues(nil)))
	if err != nil {
		return nil, err
	}
	later := locker.Guard(delayqueue.Policy(queue))
	mux.Handle("POST /orders/{id}/ship", httplock.PerKey(later, order,
		httplock.WithPrincipal(user), httplock.WithReauthorize(mayStill),
		httplock.WithStatusPath("/tickets/"), counted)(serve.Answer(s.ship)))
	mux.Handle("/tickets/", httplock.TicketHandler(queue, mine))

	pages, err := console.New(console.Options{Locker: locker, Redis: rdb, Authorize: staff}) // shows, and changes nothing
	if err != nil {
		return nil, err
	}
	mux.Handle("/ops/", pages)

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(mux)) // runs what was parked
	if err != nil {
		return nil, err
	}
	// Tells Redis what this process does, so that the console of each process shows all.
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker), ops.WithService("shop"))
	if err != nil {
		return nil, err
	}
	stop := func(ctx context.Context) error { // the worker first, then the locks that it works under
		return errors.Join(worker.Stop(ctx), beacon.Close(), locker.Shutdown(ctx))
	}
	return &serve.Shop{Handler: serve.Login(mux), Stop: stop}, worker.Start()
}

type shop struct {
	db   *sql.DB
	work func(context.Context) error // takes a second
}

func (s *shop) pay(ctx context.Context, id int64) (string, error) {
	return s.move(ctx, id, "new", "paid")
}

// move claims an order and reads it, works on it, and writes it, unless a newer holder of its key has claimed it meanwhile.
func (s *shop) move(ctx context.Context, id int64, from, to string) (status string, err error) {
	lease, _ := core.LeaseFrom(ctx)
	if err := sqlfence.Claim(ctx, s.db, lease); err != nil { // before the read
		return "", err
	}
	status, err = store.Status(ctx, s.db, id)
	if err != nil || status != from {
		return status, err
	}
	if err := s.work(ctx); err != nil { // the payment provider, the printer of labels
		return status, err
	}
	return to, sqlfence.Write(ctx, s.db, lease, func(tx *sql.Tx) error {
		return store.SetStatus(ctx, tx, id, to)
	})
}

// add claims a cart, reads it, and writes it.
func (s *shop) add(ctx context.Context, id int64) (string, error) {
	lease, _ := core.LeaseFrom(ctx)
	if err := sqlfence.Claim(ctx, s.db, lease); err != nil {
		return "", err
	}
	items, err := store.Items(ctx, s.db, id)
	if err != nil {
		return "", err
	}
	if err := s.work(ctx); err != nil { // is it in stock?
		return "", err
	}
	return fmt.Sprint("items: ", items+1), sqlfence.Write(ctx, s.db, lease, func(tx *sql.Tx) error {
		return store.SetItems(ctx, tx, id, items+1)
	})
}

func (s *shop) ship(ctx context.Context, id int64) (string, error) {
	return s.move(ctx, id, "paid", "shipped")
}

// user says on whose behalf a request is parked: its password is not stored.
func user(r *http.Request) (string, error) { return serve.User(r), nil }

// mayStill is asked before a parked request runs, which may be some minutes later.
func mayStill(_ *http.Request, user string) error {
	if !serve.Known(user) {
		return httplock.ErrForbidden
	}
	return nil
}

// mine says who sees a ticket: the one who sent the request.
func mine(r *http.Request, ticket delayqueue.Status) bool {
	return ticket.Principal == serve.User(r)
}

// staff says who sees the console.
func staff(r *http.Request, _ ops.Action) (string, error) {
	if user := serve.User(r); serve.Staff(user) {
		return user, nil
	}
	return "", errors.New("not of the staff")
}
