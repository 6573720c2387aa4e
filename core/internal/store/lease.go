package store

// Renewals of leases, refreshes of places in a key's FIFO, and the downgrade.

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Renew sends one script call per key on a Cluster. Elsewhere it sends one for many keys, since
// most of the cost is that of the call.
func (d *deployment) Renew(ctx context.Context, batch []Renewal) []RenewalReply {
	replies := make([]RenewalReply, len(batch))
	d.batcher(batch[0].Record).watch(func() error {
		for _, rdb := range []redis.UniversalClient{d.renewer.Get(), d.rdb} {
			renewSome(ctx, rdb, batch, replies, d.keysPerCall())
			if err := replies[0].Err; err == nil || replied(err) && !redis.IsMaxClientsError(err) {
				break
			}
			// Perhaps no connection was free: the other client may have one.
		}
		return replies[0].Err
	})
	return replies
}

// keysPerCall is how many keys go into one call of a script that takes any number.
func (d *deployment) keysPerCall() int {
	if d.cluster != nil {
		return 1
	}
	return 32
}

// renewSome renews leases with so many keys in a call.
func renewSome(ctx context.Context, rdb redis.UniversalClient, batch []Renewal, replies []RenewalReply, keys int) {
	var calls []*luascript.Call
	for some := range slices.Chunk(batch, keys) {
		calls = append(calls, renewCall(ctx, some))
	}
	_ = luascript.Pipeline(ctx, rdb, calls) // each call has its own error
	for _, call := range calls {
		some := batch[:min(keys, len(batch))]
		owned, err := renewed(call, len(some))
		for i, r := range some {
			replies[i] = RenewalReply{TTL: r.TTL, Err: err}
			if err == nil {
				replies[i].Owned, replies[i].Waiting = owned[i] > 0, owned[i] == 2
			}
		}
		batch, replies = batch[len(some):], replies[len(some):]
	}
}

// renewCall makes a call of renew.lua for several keys. It passes pointers, and one number for
// successive equal TTLs: a value that is put into an interface is allocated, and a process renews
// thousands a second. The first key is a string, since a Cluster's client reads the slot from it.
func renewCall(ctx context.Context, some []Renewal) *luascript.Call {
	args := append(renewScript.Args(make([]any, 0, 3+3*len(some)), len(some)), some[0].Record)
	for i := range some[1:] {
		args = append(args, &some[1+i].Record)
	}
	var lease any
	for i := range some {
		if i == 0 || some[i].TTL != some[i-1].TTL {
			lease = some[i].TTL.Milliseconds()
		}
		args = append(args, &some[i].Token, lease)
	}
	call := renewScript.Call(ctx, args, false)
	return &call
}

// renewed is the reply of renew.lua for each of n keys.
func renewed(call *luascript.Call, n int) ([]int64, error) {
	val, err := call.Result()
	if err != nil {
		return nil, err
	}
	return integers(val, n)
}

func (d *deployment) Refresh(ctx context.Context, batch []Refresh) []RefreshReply {
	keys := d.keysPerCall()
	var calls []*luascript.Call
	for some := range slices.Chunk(batch, keys) {
		args := refreshScript.Args(make([]any, 0, 3+2*len(some)), len(some))
		for _, one := range some {
			args = append(args, one.Record)
		}
		for _, one := range some {
			args = append(args, one.Token)
		}
		call := refreshScript.Call(ctx, args, false)
		calls = append(calls, &call)
	}
	d.batcher(batch[0].Record).watch(func() error { return luascript.Pipeline(ctx, d.renewer.Get(), calls) }) // each call has its own error
	replies := make([]RefreshReply, len(batch))
	left := replies
	for _, call := range calls {
		some := left[:min(keys, len(left))]
		left = left[len(some):]
		val, err := call.Result()
		var n []int64
		if err == nil {
			n, err = integers(val, 1+3*len(some))
		}
		for i := range some {
			if some[i].Err = err; err == nil {
				its := n[1+3*i:]
				some[i].Standing = Standing{Remaining: milliseconds(its[0]), Server: n[0], Place: int(its[1]), Queued: int(its[2])}
			}
		}
	}
	return replies
}

func (d *deployment) Extend(ctx context.Context, op, record, token string, ttl time.Duration) (owned, waiting bool, err error) {
	cmd := d.command(ctx, renewScript, false, record, token, ttl.Milliseconds())
	r, _, err := d.ask(ctx, op, cmd, max(ttl, ReplyTimeout), nil)
	if err != nil {
		return false, false, err
	}
	d.recycle(cmd)
	n, err := integers(r.val, 1)
	if err = cmp.Or(r.err, err); err != nil {
		return false, false, Unavailable(op, KeyOf(d.prefix, record), err)
	}
	return n[0] > 0, n[0] == 2, nil
}

func (d *deployment) Downgrade(ctx context.Context, req DowngradeRequest) (owned bool, err error) {
	cmd := d.command(ctx, downgradeScript, false, req.Record, req.Token, req.Shared, req.Fence)
	r, _, err := d.ask(ctx, "downgrade", cmd, req.Timeout, nil)
	if err != nil {
		return false, err
	}
	d.recycle(cmd)
	n, shaped := r.val.(int64)
	if !shaped {
		return false, Unavailable("downgrade", KeyOf(d.prefix, req.Record), cmp.Or(r.err, errShape))
	}
	return n == 1, nil
}

func (d *deployment) Downgrades() error { return nil }
