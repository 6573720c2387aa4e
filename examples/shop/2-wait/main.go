// Command 2-wait is the shop after the tutorial's second step: requests that change one cart wait for each other.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
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
	return &serve.Shop{Handler: mux, Stop: locker.Shutdown}, nil
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
