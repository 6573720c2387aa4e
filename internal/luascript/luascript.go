package luascript

import (
	"context"
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ErrReply is the error for a reply that the script cannot have made.
var ErrReply = errors.New("the script's reply has an unknown form")

// Script is a Lua script: plain, without a #! line, since it must run on Redis 6.2, and some
// must run when Redis is out of memory, which a #! script without allow-oom does not.
type Script struct {
	source, hash any // boxed once, for the arguments of commands
	bare         func() any
}

// New returns the script with a source.
func New(source string) *Script {
	return &Script{source, redis.NewScript(source).Hash(), sync.OnceValue(func() any { return comment.ReplaceAllString(source, "") })}
}

// Load reads lua/NAME.lua. A line "-- #include OTHER.lua" stands for that file. It panics
// if a file does not exist: their names are constants.
func Load(files fs.FS, name string) *Script { return New(read(files, name+".lua")) }

func read(files fs.FS, name string) string {
	text, err := fs.ReadFile(files, "lua/"+name)
	if err != nil {
		panic("luascript: " + err.Error())
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if other, is := strings.CutPrefix(strings.TrimSpace(line), "-- #include "); is {
			line = read(files, other)
		}
		b.WriteString(line)
	}
	return b.String()
}

// Source returns the script as Redis gets it.
func (s *Script) Source() string { return s.source.(string) }

// Hash returns the script's SHA1, in hexadecimal.
func (s *Script) Hash() string { return s.hash.(string) }

// Args appends the first arguments of a call with so many keys, at least one, to args, which is
// empty. The names of the keys, and then the script's own arguments, are to be appended after them.
func (s *Script) Args(args []any, keys int) []any { return append(args, "evalsha", s.hash, keys) }

// Whole is Args with the source, without its comments, for a script that is not to be sent again if Redis does not know it.
func (s *Script) Whole(args []any, keys int) []any { return append(args, "eval", s.bare(), keys) }

var comment = regexp.MustCompile(`(?m)^ *--.*\n`)

// Call is one call of a script, a [redis.Cmder].
type Call struct {
	*redis.Cmd
	script  *Script
	noRetry bool
}

// Call makes a call with arguments that [Script.Args] began; the call owns them from then on. With
// noRetry, go-redis does not send it again after its reply was lost.
func (s *Script) Call(ctx context.Context, args []any, noRetry bool) Call {
	return s.CallIn(ctx, new(redis.Cmd), args, noRetry)
}

// CallIn is Call, but reuses cmd, which go-redis no longer needs: that saves an allocation.
func (s *Script) CallIn(ctx context.Context, cmd *redis.Cmd, args []any, noRetry bool) Call {
	*cmd = *redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return Call{cmd, s, noRetry}
}

// Prepare makes a call with at least one key.
func (s *Script) Prepare(ctx context.Context, keys []string, args ...any) Call {
	all := s.Args(make([]any, 0, 3+len(keys)+len(args)), len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return s.Call(ctx, append(all, args...), false)
}

// NoRetry tells go-redis whether to send the call again.
func (c *Call) NoRetry() bool { return c.noRetry }

// cmder returns the call for go-redis: if it may be sent again, as go-redis's own type.
func (c *Call) cmder() redis.Cmder {
	if c.noRetry {
		return c
	}
	return c.Cmd
}

// Send sends the call, again with the source if the server does not know the script. The reply is
// the command's.
func (c *Call) Send(ctx context.Context, rdb redis.UniversalClient) {
	_ = rdb.Process(ctx, c.cmder())
	if c.missed() {
		c.reset(true)
		_ = rdb.Process(ctx, c.cmder())
	}
}

// Pipeline is Between without others before the calls.
func Pipeline(ctx context.Context, rdb redis.Cmdable, calls []*Call, after ...redis.Cmder) error {
	return Between(ctx, rdb, nil, calls, after)
}

// Between sends calls, each of which has its own error, in one pipeline between other commands. If a server did not know scripts, their
// calls and the others are sent once more. It returns the first error of those that were sent last.
func Between(ctx context.Context, rdb redis.Cmdable, before []redis.Cmder, calls []*Call, after []redis.Cmder) (err error) {
	for all := false; len(calls) > 0; all = true {
		cmds := append(make([]redis.Cmder, 0, len(before)+len(calls)+len(after)), before...)
		for _, c := range calls {
			cmds = append(cmds, c.cmder())
		}
		pipe := rdb.Pipeline()
		_ = pipe.BatchProcess(ctx, append(cmds, after...)...)
		_, err = pipe.Exec(ctx)
		if err != nil {
			refused(err, calls, append(before, after...))
		}
		calls = missed(calls, all)
	}
	return err
}

// refused sets err on the commands of a pipeline that have neither a reply nor an error. go-redis
// leaves them like that, and only returns the error, if Redis refused the connection, such as for a
// wrong password.
func refused(err error, calls []*Call, others []redis.Cmder) {
	for _, c := range calls {
		if c.Err() != nil || c.Val() != nil {
			continue
		}
		c.SetErr(err)
		for _, other := range others {
			if other.Err() == nil {
				other.SetErr(err)
			}
		}
	}
}

// missed prepares the calls whose script a server did not know to be sent again. The first call of
// each script carries its source, since the others follow it on one connection. If they were on
// several connections, all of them do.
func missed(calls []*Call, all bool) (again []*Call) {
	var scripts []*Script
	for _, c := range calls {
		if !c.missed() {
			continue
		}
		first := !slices.Contains(scripts, c.script)
		if first {
			scripts = append(scripts, c.script)
		}
		c.reset(first || all)
		again = append(again, c)
	}
	return again
}

// missed reports whether the server did not know the script. A call that carried the source is not
// sent again.
func (c *Call) missed() bool {
	err := c.Err() // HasErrorPrefix allocates, even for nil
	return err != nil && c.Args()[0] != "eval" && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// reset prepares the call to be sent again.
func (c *Call) reset(source bool) {
	args := c.Args()
	if source {
		args[0], args[1] = "eval", c.script.source
	}
	for _, arg := range args {
		if n, ok := arg.(*Counted); ok {
			n.writes.Store(0) // nothing has run yet
		}
	}
	c.SetErr(nil)
}

// Run calls the script, with at least one key, and waits for the reply.
func (s *Script) Run(ctx context.Context, rdb redis.UniversalClient, keys []string, args ...any) *redis.Cmd {
	c := s.Prepare(ctx, keys, args...)
	c.Send(ctx, rdb)
	return c.Cmd
}
