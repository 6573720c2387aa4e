// Command 3-park is the shop after the tutorial's third step: what ships an order is stored while the order is busy, and runs afterwards.
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
	"github.com/perkey-go/perkey/retry"
)

func main() { serve.Main(open) }

func open(rdb redis.UniversalClient, db *sql.DB) (*serve.Shop, error) {
	locker, err := core.New(rdb,
		core.WithPrefix("shop"),                   // of all names of this service in Redis
		core.WithObserver(core.SlogObserver(nil))) // logs lost leases, and a Redis that is away
	if err != nil {
		return nil, err
	}
	s := &shop{db: db, work: serve.Work}
	reject := locker.Guard(core.RejectConflicts)
	order := httplock.ParamInt("order:", "id") // 7 and 007 are one order

	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", httplock.PerKey(reject, order)(serve.Answer(s.pay)))

	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	cart := httplock.ParamInt("cart:", "id")
	mux.Handle("POST /carts/{id}/items", httplock.PerKey(wait, cart)(serve.Answer(s.add)))

	queue, err := delayqueue.New(rdb, "ship",
		delayqueue.WithPrefix("shop"),  // the Locker's
		delayqueue.WithService("shop")) // another service that uses the queue is refused
	if err != nil {
		return nil, err
	}
	later := locker.Guard(delayqueue.Policy(queue))
	mux.Handle("POST /orders/{id}/ship", httplock.PerKey(later, order,
		httplock.WithPrincipal(user), httplock.WithReauthorize(mayStill))(serve.Answer(s.ship)))

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(mux)) // runs what was parked
	if err != nil {
		return nil, err
	}
	stop := func(ctx context.Context) error { // the worker first, then the locks that it works under
		return errors.Join(worker.Stop(ctx), locker.Shutdown(ctx))
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

// move reads an order, works on it, and writes it. Two at once would both charge the client.
func (s *shop) move(ctx context.Context, id int64, from, to string) (status string, err error) {
	status, err = store.Status(ctx, s.db, id)
	if err != nil || status != from {
		return status, err
	}
	if err := s.work(ctx); err != nil { // the payment provider, the printer of labels
		return status, err
	}
	return to, store.SetStatus(ctx, s.db, id, to)
}

// add reads a cart, and writes it. Two at once would lose an item.
func (s *shop) add(ctx context.Context, id int64) (string, error) {
	items, err := store.Items(ctx, s.db, id)
	if err != nil {
		return "", err
	}
	if err := s.work(ctx); err != nil { // is it in stock?
		return "", err
	}
	return fmt.Sprint("items: ", items+1), store.SetItems(ctx, s.db, id, items+1)
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
