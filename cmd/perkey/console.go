package main

import (
	"context"
	"net"
	"net/netip"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops/console"
)

const flagChanges, flagUsers, flagProxy, flagUserHeader = "changes", "users", "proxy", "user-header"

func (t *tool) consoleCommand() *cli.Command {
	return &cli.Command{
		Name: "console", Usage: "serve the console, pages for operators, to browsers", ArgsUsage: " ",
		Description: "It changes nothing without --changes, and never shows payloads. On a loopback address whoever is on this machine sees the rest, unless there is --users.\n" +
			"Another address needs --proxy: something in front that speaks HTTPS, checks who sends a request, and says so in a header that it takes from nobody else.\n" +
			"It ends with Ctrl-C.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: flagListen, Value: "127.0.0.1:7070", Usage: "the `ADDRESS` to listen on"},
			&cli.BoolFlag{Name: flagChanges, Usage: "whoever may see it may also make changes; needs --users or --proxy"},
			&cli.StringFlag{Name: flagUsers, Usage: "who may log in: a `FILE` with a name and a token of 32 characters or more in each line; on a loopback address only"},
			&cli.StringSliceFlag{Name: flagProxy, Usage: "only this `ADDRESS` is answered, or network such as 10.0.0.0/28; may be given again"},
			&cli.StringFlag{Name: flagUserHeader, Usage: "with --proxy: the `HEADER` that says who sends a request, such as X-Forwarded-Email"},
		},
		Action: t.console,
	}
}

func (t *tool) console(ctx context.Context, c *cli.Command) error {
	if _, err := args(c, 0, 0); err != nil {
		return err
	}
	addr := c.String(flagListen)
	authorize, err := authorizer(c, isLoopback(addr))
	if err != nil {
		return err
	}
	if c.Bool(flagChanges) && authorize == nil {
		return usagef("--changes: give --users or --proxy: it must be known who makes a change")
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	o := console.Options{Locker: t.locker, Redis: t.rdb, Authorize: authorize, Changes: c.Bool(flagChanges), Log: t.log()}
	return console.Serve(ctx, addr, o, func(addr net.Addr) { t.serving(addr, "/") })
}

// isLoopback reports whether only this machine reaches an address, as far as that can be seen.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
