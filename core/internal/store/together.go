package store

// What one call of a script does for several commands of a batch.

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// together is a call of acquires.lua or releases.lua.
type together struct {
	script   *luascript.Script
	commands []*command
	call     luascript.Call
}

// pipeline sends the commands of a batch, and then those again that have to ask alone. It returns the first error of what was sent last.
func (b *batcher) pipeline(ctx context.Context, batch []*command) error {
	releases, acquires := together{script: releasesScript}, together{script: acquiresScript}
	calls := make([]*luascript.Call, 0, len(batch))
	var before, after []redis.Cmder
	for _, c := range batch {
		first, last := c.rides(ctx)
		before, after = append(before, first...), append(after, last...)
		switch {
		case c.plain && c.script == releaseScript:
			releases.commands = append(releases.commands, c)
		case c.plain:
			acquires.commands = append(acquires.commands, c)
		default:
			calls = append(calls, c.sent(true))
		}
	}
	failure := luascript.Between(ctx, b.d.rdb, before, acquires.add(ctx, releases.add(ctx, calls)), after)
	alone := acquires.spread(releases.spread(nil))
	if len(alone) == 0 {
		return failure
	}
	return b.pipeline(ctx, alone)
}

// add adds the call to calls.
func (t *together) add(ctx context.Context, calls []*luascript.Call) []*luascript.Call {
	switch len(t.commands) {
	case 0:
		return calls
	case 1:
		return append(calls, t.commands[0].sent(true))
	}
	args := t.script.Args(make([]any, 0, 4+5*len(t.commands)), len(t.commands))
	for _, c := range t.commands {
		args = append(args, c.record)
	}
	if t.script == acquiresScript {
		args = append(args, &t.commands[0].bound) // they are written at the same time
	}
	for _, c := range t.commands {
		c.used.Reset(c.used.Number)
		args = c.plainArgs(args)
	}
	t.call = t.script.Call(ctx, args, true)
	return append(calls, &t.call)
}

// plainArgs appends what a command says for itself, in a call for several, to args.
func (c *command) plainArgs(args []any) []any {
	own := c.args[4:] // evalsha, its hash, 1, the record
	if c.script == releaseScript {
		return append(args, own...)
	}
	own = append(own, "", "") // its description and its mark can be absent
	return append(args, own[0], own[1], own[3], own[4])
}

// spread gives each command its reply. It appends those that have to ask alone to alone.
func (t *together) spread(alone []*command) []*command {
	if t.call.Cmd == nil {
		return alone
	}
	val, err := t.call.Result()
	replies, _ := val.([]any)
	isLate := err == nil && t.script == acquiresScript && result{val: val, clock: t.commands[0].bound.clock}.late()
	if err == nil && !isLate && len(replies) != len(t.commands) {
		err = errShape
	}
	for i, c := range t.commands {
		c.cmd = *redis.NewCmd(&c.ctx)
		c.call, c.bound.written = luascript.Call{Cmd: &c.cmd}, t.commands[0].bound.written
		switch {
		case err != nil:
			c.call.SetErr(err)
		case isLate:
			c.call.SetVal(val)
		case replies[i] == nil:
			c.plain, c.twice = false, c.used.Twice()
			alone = append(alone, c)
		default:
			c.call.SetVal(replies[i])
		}
	}
	return alone
}
