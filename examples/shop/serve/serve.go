// Package serve starts and stops the shop of the tutorial: what a service needs with or without perkey.
package serve

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/examples/internal/show"
	"github.com/perkey-go/perkey/examples/shop/store"
)

// A Shop is what Main serves.
type Shop struct {
	Handler http.Handler
	// Stop waits for what the shop does beside its requests, until ctx ends.
	Stop func(ctx context.Context) error
}

// Main serves the shop that open makes, until the process gets an interrupt or SIGTERM.
func Main(open func(redis.UniversalClient, *sql.DB) (*Shop, error)) {
	redisURL := flag.String("redis", "", "URL of the Redis; empty: one inside this process")
	listen := flag.String("listen", "localhost:8080", "address of the shop")
	file := flag.String("db", "shop.db", "file of the database")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *redisURL, *listen, *file, open); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, redisURL, listen, file string, open func(redis.UniversalClient, *sql.DB) (*Shop, error)) error {
	rdb, closeRedis, err := show.Connect(redisURL) // in a service of yours: redis.NewClient
	if err != nil {
		return err
	}
	defer closeRedis()
	db, err := store.Open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	shop, err := open(rdb, db)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: shop.Handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Printf("the shop is at http://%s", listener.Addr())

	select {
	case <-ctx.Done():
	case err = <-served:
	}
	// Requests first, then what else the shop does, then the database and Redis.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(grace), shop.Stop(grace))
}
