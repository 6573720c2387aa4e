package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/core"
)

// exitLost is the status of exec after the lease was lost: EX_TEMPFAIL of sysexits.h.
const exitLost = 75

func (t *tool) execCommand() *cli.Command {
	return &cli.Command{
		Name: "exec", Usage: "run a command while a key is held", ArgsUsage: "KEY -- COMMAND [ARGUMENT…]",
		Description: "The key is renewed while the command runs, and released when it ends. PERKEY_FENCE has its fence; PERKEY_REDIS and\n" +
			"PERKEY_REDIS_PASSWORD are not passed on. Signals are.\n" +
			"If the lease is lost, the command gets SIGTERM, and SIGKILL after --grace; processes that it has started itself get neither.\n" +
			"Exit status: the command's own, 128 and the signal's number if one killed it; 75 if the lease was lost; 1 if the key is held.",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "wait", Usage: "wait for the key for this `TIME`; 0: do not wait"},
			&cli.DurationFlag{Name: "ttl", Value: core.DefaultTTL, Usage: "the length of the lease, which is renewed"},
			&cli.DurationFlag{Name: "grace", Value: 5 * time.Second, Usage: "how long the command has to end after the lease was lost"},
		},
		Action: t.exec,
	}
}

func (t *tool) exec(ctx context.Context, c *cli.Command) error {
	all, err := args(c, 2, 1<<20)
	if err != nil {
		return err
	}
	key, err := checkedKey(c, all[0])
	if err != nil {
		return err
	}
	if all[1] == "--" && len(all) > 2 {
		all = append(all[:1], all[2:]...)
	}
	path, err := exec.LookPath(all[1])
	if err != nil {
		return err
	}
	if err := t.connect(ctx, c); err != nil {
		return err
	}
	lease, err := t.take(ctx, key, all[1], c.Duration("wait"), c.Duration("ttl"))
	if err != nil {
		return err
	}
	status, err := t.run(ctx, lease, path, all[1:], c.Duration("grace"))
	lost := errors.Is(context.Cause(lease.Context()), core.ErrLeaseLost)
	if failed := lease.Release(context.WithoutCancel(ctx)); failed != nil && !lost {
		lost = errors.Is(failed, core.ErrLeaseLost)
		_, _ = fmt.Fprintln(t.errOut, "perkey: "+printable(failed.Error()))
	}
	switch {
	case err != nil:
		return err
	case lost:
		_, _ = fmt.Fprintf(t.errOut, "perkey: the lease of %s was lost while the command ran\n", quote(key))
		return statusError(exitLost)
	case status != 0:
		return statusError(status)
	}
	return nil
}

// take acquires the key. The lease outlives ctx, which a signal ends: from then on signals are the command's.
func (t *tool) take(ctx context.Context, key, command string, wait, ttl time.Duration) (lease *core.Lease, err error) {
	asking, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	onSignal := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer onSignal()
	opts := []core.AcquireOption{core.LeaseTTL(ttl), core.Named("perkey exec", command)}
	inTime := true
	if wait > 0 {
		timer := time.AfterFunc(wait, func() { cancel(errWaited) })
		lease, err = t.locker.Acquire(asking, key, opts...)
		inTime = timer.Stop()
	} else {
		lease, err = t.locker.TryAcquire(asking, key, opts...)
	}
	if err == nil && inTime && onSignal() {
		return lease, nil
	}
	if err == nil { // the end of asking came with the lease, which it ends
		_ = lease.Release(context.WithoutCancel(ctx))
		<-asking.Done()
		err = asking.Err()
	}
	switch {
	case errors.Is(context.Cause(asking), errWaited):
		err = fmt.Errorf("%s is still held after %s: see perkey show %s", quote(key), span(wait), shell(key))
	case errors.Is(err, core.ErrConflict):
		err = fmt.Errorf("%s is held: see perkey show %s", quote(key), shell(key))
	}
	cancel(nil)
	return nil, err
}

var errWaited = errors.New("waited long enough")

// withoutPasswords is an environment without what opens the Redis of perkey: the command holds its key without that.
func withoutPasswords(env []string) []string {
	return slices.DeleteFunc(env, func(one string) bool {
		name, _, _ := strings.Cut(one, "=")
		return name == envRedis || name == envPassword
	})
}

// run runs the command until it has ended, and returns its status. The command is not started after ctx, which a signal ends.
func (t *tool) run(ctx context.Context, lease *core.Lease, path string, argv []string, grace time.Duration) (status int, err error) {
	signals := make(chan os.Signal, 16)
	if all := slices.DeleteFunc(slices.Clone(passedOn), signal.Ignored); len(all) > 0 { // no signal would be all of them
		signal.Notify(signals, all...)
		defer signal.Stop(signals)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{
		Path: path, Args: argv, Stdin: os.Stdin, Stdout: t.out, Stderr: t.errOut,
		Env: append(withoutPasswords(os.Environ()), fmt.Sprint("PERKEY_FENCE=", lease.Fence())),
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	lost, kill := lease.Context().Done(), (<-chan time.Time)(nil)
	for {
		select {
		case s := <-signals:
			if !fromTerminal(s) {
				_ = cmd.Process.Signal(s)
			}
		case <-lost:
			lost = nil
			terminate(cmd.Process)
			kill = time.After(grace)
		case <-kill:
			_ = cmd.Process.Kill()
		case err := <-ended:
			if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
				return 0, err
			}
			return statusOf(cmd.ProcessState), nil
		}
	}
}
