package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// awayAfter is how long Redis has to answer at first. Tests that are not about it change it.
var awayAfter = 1500 * time.Millisecond

// tool is what the commands share.
type tool struct {
	out, errOut io.Writer

	rdb    redis.UniversalClient // nil until connect
	locker *core.Locker
	prefix string
	where  string // which Redis, without passwords
}

// What may have a password.
const envRedis, envPassword = "PERKEY_REDIS", "PERKEY_REDIS_PASSWORD"

const (
	flagRedis, flagConfig, flagPrefix, flagOutput = "redis", "config", "prefix", "output"
	flagPasswordFile, flagCA, flagCert, flagKey   = "password-file", "tls-ca-file", "tls-cert-file", "tls-key-file"
	flagServerName, flagWho, flagReason           = "tls-server-name", "who", "reason"
	flagQuoted                                    = "quoted"
)

func (t *tool) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagRedis, Usage: "`URL` such as redis://user@host:6379/0, or rediss:// for TLS; also PERKEY_REDIS, where it may have a password"},
		&cli.StringFlag{Name: flagConfig, Usage: "the Redis and the prefix of a service's `FILE`, in place of --redis: for Sentinel and Cluster too", Sources: cli.EnvVars("PERKEY_CONFIG")},
		&cli.StringFlag{Name: flagPrefix, Usage: "the service's `PREFIX`, perkey by default", Sources: cli.EnvVars("PERKEY_PREFIX")},
		&cli.StringFlag{Name: flagPasswordFile, Usage: "a `FILE` with the password; else PERKEY_REDIS_PASSWORD"},
		&cli.StringFlag{Name: flagCA, Usage: "with rediss://: a `FILE` with the authorities to trust, as PEM"},
		&cli.StringFlag{Name: flagCert, Usage: "with rediss://: a `FILE` with the client's certificate"},
		&cli.StringFlag{Name: flagKey, Usage: "with rediss://: a `FILE` with its key"},
		&cli.StringFlag{Name: flagServerName, Usage: "with rediss://: the `NAME` in the server's certificate"},
		&cli.StringFlag{Name: flagOutput, Aliases: []string{"o"}, Usage: "text or json", Value: "text", Validator: func(s string) error {
			if s != "text" && s != "json" {
				return fmt.Errorf("-o %s: expected text or json", quote(s))
			}
			return nil
		}},
		&cli.BoolFlag{Name: flagQuoted, Aliases: []string{"q"}, Usage: "keys and ids are given as they are shown: quoted, as Go quotes them"},
		&cli.StringFlag{Name: flagWho, Usage: "who makes a change, for the audit; by default the user and host", Sources: cli.EnvVars("PERKEY_WHO")},
	}
}

func (t *tool) close() {
	if t.locker != nil {
		_ = t.locker.Close()
	}
	if t.rdb != nil {
		_ = t.rdb.Close()
	}
}

// connect opens the Redis that the flags name, and returns once it has answered.
func (t *tool) connect(ctx context.Context, c *cli.Command) (err error) {
	name := c.String(flagConfig)
	var data []byte
	switch {
	case name == "":
		data, err = redisSection(c)
	case c.String(flagRedis) != "":
		err = usagef("--redis and --config: give one of them")
	default:
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return err
	}
	if t.rdb, t.prefix, err = config.Connect(name, data); err != nil {
		wrong, ok := errors.AsType[*config.Error](err)
		if name != "" || !ok {
			return err
		}
		return usagef("--redis: %s", wrong.Problems[0].Message)
	}
	if prefix := c.String(flagPrefix); prefix != "" {
		t.prefix = prefix
	}
	if t.locker, err = core.New(t.rdb, core.WithPrefix(t.prefix)); err != nil {
		return usagef("%v", err)
	}
	t.where = whereIs(t.rdb)
	return t.ping(ctx)
}

// redisSection says in a configuration's words what the flags say.
func redisSection(c *cli.Command) ([]byte, error) {
	address := c.String(flagRedis)
	if u, err := url.Parse(address); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return nil, usagef("--redis has a password, which every user of this machine can see: put the URL into PERKEY_REDIS, or the password into PERKEY_REDIS_PASSWORD or --password-file")
		}
	}
	if address == "" {
		address = os.Getenv(envRedis)
	}
	if address == "" {
		return nil, usagef("which Redis? Give --redis URL, PERKEY_REDIS or --config FILE")
	}
	section := map[string]any{
		"url": text(address), "allow_plain_password": true, "max_retries": 1, "dial_timeout": "1s", "read_timeout": "10s", "write_timeout": "10s",
	}
	tls := map[string]any{}
	for name, flag := range map[string]string{"ca_file": flagCA, "cert_file": flagCert, "key_file": flagKey, "server_name": flagServerName} {
		if value := c.String(flag); value != "" {
			tls[name] = text(value)
		}
	}
	if len(tls) > 0 {
		section["tls"] = tls
	}
	if file := c.String(flagPasswordFile); file != "" {
		section["password_file"] = text(file)
	} else if password := os.Getenv(envPassword); password != "" {
		section["password"] = text(password)
	}
	return json.Marshal(map[string]any{"redis": section})
}

// text is a text in which ${ stands for nothing else.
func text(s string) string { return strings.ReplaceAll(s, "${", "$${") }

func whereIs(rdb redis.UniversalClient) string {
	switch client := rdb.(type) {
	case *redis.Client:
		return client.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ", ")
	}
	return "this address"
}

// awayError says that Redis did not answer.
type awayError struct {
	where string
	err   error
}

func (e *awayError) Error() string {
	return fmt.Sprintf("Redis at %s does not answer: %v", e.where, e.err)
}

func (e *awayError) Unwrap() error { return e.err }

func (t *tool) ping(ctx context.Context) error {
	answered := make(chan error, 1)
	go func() { answered <- t.rdb.Ping(ctx).Err() }()
	timer := time.NewTimer(awayAfter)
	defer timer.Stop()
	select {
	case err := <-answered:
		var said redis.Error
		if errors.As(err, &said) && !redis.HasErrorPrefix(err, "NOPERM ") { // it may do all that is needed
			return fmt.Errorf("Redis at %s refuses: %w", t.where, err) //nolint:staticcheck // it is a name
		} else if err != nil && !redis.HasErrorPrefix(err, "NOPERM ") {
			return &awayError{t.where, err}
		}
		return nil
	case <-timer.C:
		return &awayError{t.where, fmt.Errorf("no reply for %g s", awayAfter.Seconds())}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explain is what an error means to whoever typed the command.
func explain(err error) string {
	if errors.Is(err, context.Canceled) {
		return "stopped"
	}
	if changed, ok := errors.AsType[*ops.ChangedError](err); ok {
		return fmt.Sprintf("nothing was changed: it has changed since you saw it.\n  seen  %s\n  now   %s", changed.Seen, changed.Now)
	}
	return err.Error()
}

// log is for changes, where somebody keeps the log: not on a terminal.
func (t *tool) log() *slog.Logger {
	if file, ok := t.errOut.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return slog.New(slog.DiscardHandler)
		}
	}
	return slog.Default()
}

// operator makes changes.
func (t *tool) operator() (*ops.Operator, error) {
	audit, err := ops.NewAudit(t.rdb, t.prefix, t.log())
	if err != nil {
		return nil, err
	}
	return ops.NewOperator(t.locker, audit)
}

// connectOperator connects, and is operator.
func (t *tool) connectOperator(ctx context.Context, c *cli.Command) (*ops.Operator, error) {
	if err := t.connect(ctx, c); err != nil {
		return nil, err
	}
	return t.operator()
}

// reasonFlag is that of all changes.
func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: flagReason, Usage: "why, for the audit: `TEXT`, required"}
}

// by is who makes a change, and why.
func by(c *cli.Command) (ops.By, error) {
	who := c.String(flagWho)
	if who == "" {
		name := "unknown"
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		host, _ := os.Hostname()
		who = name + "@" + host
	}
	why := strings.TrimSpace(c.String(flagReason))
	if why == "" {
		return ops.By{}, usagef("%s: --reason TEXT is needed: it is in the audit", c.FullName())
	}
	return ops.By{Who: who, Why: why}, nil
}

// args are the arguments of a command, from least to most of them; the first is unquoted if -q says so.
func args(c *cli.Command, least, most int) ([]string, error) {
	all := c.Args().Slice()
	if len(all) < least || len(all) > most {
		return nil, usagef("%s: expected %s %s", c.FullName(), c.FullName(), c.ArgsUsage)
	}
	return all, nil
}

// keyArg is the only argument, a lock key.
func keyArg(c *cli.Command) (string, error) {
	all, err := args(c, 1, 1)
	if err != nil {
		return "", err
	}
	return checkedKey(c, all[0])
}

func checkedKey(c *cli.Command, arg string) (string, error) {
	key, err := unquoted(c, arg)
	if err != nil {
		return "", err
	}
	if err := core.ValidateKey(key); err != nil {
		return "", usagef("%s: %v", c.FullName(), err)
	}
	return key, nil
}

func (t *tool) queue(ctx context.Context, name string) (*delayqueue.Queue, error) {
	q, err := delayqueue.Open(ctx, t.rdb, name, delayqueue.WithPrefix(t.prefix))
	if errors.Is(err, delayqueue.ErrNoQueue) {
		all, _ := delayqueue.Queues(ctx, t.rdb, t.prefix)
		names := make([]string, len(all))
		for i, info := range all {
			names[i] = info.Name
		}
		if len(names) == 0 {
			names = []string{"none"}
		}
		return nil, fmt.Errorf("no queue %s under the prefix %s; there are: %s", quote(name), quote(t.prefix), strings.Join(names, ", "))
	}
	return q, err
}
