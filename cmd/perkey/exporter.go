package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/lockprom"
)

const flagListen = "listen"

func (t *tool) exporterCommand() *cli.Command {
	return &cli.Command{
		Name: "exporter", Usage: "serve metrics of all queues and of processes with a beacon to Prometheus, at /metrics", ArgsUsage: " ",
		Description: "It finds the queues under the prefix by itself. It has no counters of calls: each service exports its own with lockprom.\n" +
			"Whoever reaches the address sees the names of queues and how much is in them, and no keys. It ends with Ctrl-C.",
		Flags:  []cli.Flag{&cli.StringFlag{Name: flagListen, Value: "127.0.0.1:9171", Usage: "the `ADDRESS` to listen on"}},
		Action: t.exporter,
	}
}

func (t *tool) exporter(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(lockprom.NewFleet(t.rdb, t.prefix)); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.String(flagListen))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() }) // a scrape can be made again
	defer stopped()
	t.serving(listener.Addr(), "/metrics")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serving tells where, on standard error.
func (t *tool) serving(addr net.Addr, path string) {
	_, _ = fmt.Fprintf(t.errOut, "http://%s%s\n", addr, path)
}
