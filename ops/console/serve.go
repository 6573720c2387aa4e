package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
)

// Serve serves the console by itself on an address such as 127.0.0.1:7070, and blocks until ctx ends, and then at most 5 s for requests that
// are under way. It calls ready, which may be nil, with the address that it listens on. Without Options.Authorize that must be a loopback
// address: anything else is refused with an error that wraps [core.ErrInvalidOption]. It speaks HTTP without TLS: for other addresses put a
// proxy in front of it that speaks TLS.
//
// On a loopback address it is [LocalOnly].
func Serve(ctx context.Context, addr string, o Options, ready func(net.Addr)) error {
	handler, err := New(o)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	local := listener.Addr().(*net.TCPAddr).IP.IsLoopback()
	if !local && o.Authorize == nil {
		_ = listener.Close()
		return fmt.Errorf("console: %w: %s is not a loopback address, and without Authorize whoever reaches it sees everything", core.ErrInvalidOption, addr)
	}
	if local {
		handler = LocalOnly(handler)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if ready != nil {
		ready(listener.Addr())
	}
	select {
	case err := <-served:
		return fmt.Errorf("console: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err = server.Shutdown(grace); err != nil {
		err = errors.Join(fmt.Errorf("console: requests were still under way after 5 s: %w", err), server.Close())
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// LocalOnly refuses requests whose Host is not localhost or a loopback address. It is for a console that everybody at this machine may use,
// on a loopback address: no page of another site reads it, or changes anything, through a host name that it has pointed at this machine.
// [Serve] has it.
func LocalOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "This console answers only for localhost.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
