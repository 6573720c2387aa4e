// Command perkey looks after the locks and queues of perkey in a Redis: who holds a key and how to free it, what waits and what
// died in delay queues, whether a request ran. perkey --help has its commands, docs/operations.md how to use it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"
)

// What perkey exits with. With exec it is else the status of the command.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
	exitFound = 3
)

// statusError ends perkey with a status, and with nothing more to say.
type statusError int

func (s statusError) Error() string { return fmt.Sprint("exit status ", int(s)) }

// usageError is a mistake in what was typed.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func main() { os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr)) }

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as it is of what a shell runs in the background: it stays so, for the command of exec too
		ends = append(ends, os.Interrupt)
	}
	ctx, stop := signal.NotifyContext(ctx, ends...)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second one ends it even if Redis does not answer
	redis.SetLogger(discardLog{})
	slog.SetDefault(slog.New(slog.NewTextHandler(errOut, nil)))
	t := &tool{out: out, errOut: errOut}
	defer t.close()
	err := t.command().Run(ctx, args)
	var status statusError
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(errOut, "perkey: "+printable(usage.text))
		return exitUsage
	default:
		_, _ = fmt.Fprintln(errOut, "perkey: "+printable(explain(err)))
		return exitError
	}
}

// discardLog keeps go-redis from logging each dial that fails: perkey reports it.
type discardLog struct{}

func (discardLog) Printf(context.Context, string, ...any) {}

func (t *tool) command() *cli.Command {
	usage := func(_ context.Context, _ *cli.Command, err error, _ bool) error { return usagef("%v", err) }
	root := &cli.Command{
		Name:  "perkey",
		Usage: "inspect and operate the locks and queues of perkey in a Redis",
		Description: "Exit status: 0 done, 1 error, 2 a mistake in the command line, 3 something was found (doctor, config check).\n" +
			"Keys and ids are shown quoted, as Go quotes them, where they have more than plain characters; -q takes them so.\n" +
			"Each change needs --reason, and is in the audit before it is made.",
		Flags:          t.flags(),
		HideVersion:    true,
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Writer:         t.out,
		ErrWriter:      t.errOut,
		Commands: []*cli.Command{
			t.doctorCommand(), t.showCommand(), t.unlockCommand(), t.lsCommand(), t.queueCommand(), t.deadCommand(), t.configCommand(), t.auditCommand(), t.execCommand(), t.idemCommand(),
			t.fleetCommand(), t.watchCommand(), t.consoleCommand(), t.exporterCommand(),
		},
	}
	each(root, func(c *cli.Command) {
		c.OnUsageError = usage
		c.HideHelpCommand = true
		if c.Action == nil {
			c.Action = func(_ context.Context, c *cli.Command) error {
				if c.Args().Present() {
					return usagef("%s: no such command: %s; see %s --help", c.FullName(), quote(c.Args().First()), c.FullName())
				}
				return cli.ShowSubcommandHelp(c)
			}
		}
	})
	return root
}

func each(c *cli.Command, do func(*cli.Command)) {
	do(c)
	for _, sub := range c.Commands {
		each(sub, do)
	}
}
