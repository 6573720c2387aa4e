package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// How a waiting locker learns of its grant; MARK in record.lua. Boxed once.
var (
	notQueued     any = ""
	markListens   any = "@"
	markElsewhere any = "+"
	markPolls     any = "~"
)

// acquireReply is what acquire.lua answered.
type acquireReply struct {
	granted   bool
	fence     int64
	waiting   bool          // granted: somebody else waits
	room      bool          // granted: nobody waits, and one more with a limit above 1 fits
	reserved  bool          // granted: the key is reserved
	remaining time.Duration // refused: of a holder's lease; zero: not known
	server    int64         // refused: the server's clock in ms
	place     int           // refused: in the queue, from 1; 0: not in it
	foreign   bool          // refused: the record is not of this version, and has no queue
	queued    int           // refused: length of the queue
}

func parseAcquire(r result) (reply acquireReply, err error) {
	if r.err != nil {
		return reply, r.err
	}
	if fence, ok := r.val.(int64); ok {
		return acquireReply{granted: true, fence: fence, room: true}, nil
	}
	n, err := integers(r.val, 3)
	switch {
	case err != nil:
		return reply, err
	case n[0] == 1:
		return acquireReply{granted: true, fence: n[1], waiting: n[2] == 1, reserved: n[2] == 2}, nil
	case len(n) < 5:
		return reply, errShape
	}
	return acquireReply{
		remaining: time.Duration(n[1]) * time.Millisecond, server: n[2], place: max(int(n[3]), 0), foreign: n[3] < 0, queued: int(n[4]),
	}, nil
}

var errShape = luascript.ErrReply

func integers(val any, least int) ([]int64, error) {
	items, ok := val.([]any)
	if !ok || len(items) < least {
		return nil, errShape
	}
	n := make([]int64, len(items))
	for i, item := range items {
		if n[i], ok = item.(int64); !ok {
			return nil, errShape
		}
	}
	return n, nil
}

type renewalReply struct {
	ttl   time.Duration // what was asked for
	owned bool
	// Somebody waits for the key.
	waiting bool
	err     error
}

// renewal is one lease in a batch.
type renewal struct {
	record, entry string
	ttl           time.Duration
}

// renew asks Redis to renew leases, all on one node. On a Cluster each key is a
// command; elsewhere many go into one, since most of a script call's cost is the call.
func (d *deployment) renew(ctx context.Context, batch []renewal) []renewalReply {
	replies := make([]renewalReply, len(batch))
	for _, rdb := range []redis.UniversalClient{d.renewer.client(), d.rdb} {
		renewSome(ctx, rdb, batch, replies, d.keysPerCall())
		var answer redis.Error
		if err := replies[0].err; err == nil || errors.As(err, &answer) && !redis.IsMaxClientsError(err) {
			break
		}
		// Perhaps no connection could be had: the other client may have one.
	}
	return replies
}

// keysPerCall is how many keys go into one call of a script for any number.
func (d *deployment) keysPerCall() int {
	if d.cluster != nil {
		return 1
	}
	return 32
}

// renewSome renews so many keys a call.
func renewSome(ctx context.Context, rdb redis.UniversalClient, batch []renewal, replies []renewalReply, keys int) {
	var calls []*luascript.Call
	for some := range slices.Chunk(batch, keys) {
		calls = append(calls, renewCall(ctx, some))
	}
	_ = luascript.Pipeline(ctx, rdb, calls) // each call has its own error
	for _, call := range calls {
		some := batch[:min(keys, len(batch))]
		owned, err := renewed(call, len(some))
		for i, r := range some {
			replies[i] = renewalReply{ttl: r.ttl, err: err}
			if err == nil {
				replies[i].owned, replies[i].waiting = owned[i] > 0, owned[i] == 2
			}
		}
		batch, replies = batch[len(some):], replies[len(some):]
	}
}

// renewCall makes a call of renew.lua for several keys. It passes pointers, and one number for
// all that have it: what is put into an interface by value is allocated, and a process renews
// thousands a second. The first key is a string, since a Cluster's client looks for the slot
// in it.
func renewCall(ctx context.Context, some []renewal) *luascript.Call {
	args := append(renewScript.Args(make([]any, 0, 3+3*len(some)), len(some)), some[0].record)
	for i := range some[1:] {
		args = append(args, &some[1+i].record)
	}
	var lease any
	for i := range some {
		if i == 0 || some[i].ttl != some[i-1].ttl {
			lease = some[i].ttl.Milliseconds()
		}
		args = append(args, &some[i].entry, lease)
	}
	call := renewScript.Call(ctx, args, false)
	return &call
}

// renewed is what renew.lua answered for each of n keys.
func renewed(call *luascript.Call, n int) ([]int64, error) {
	val, err := call.Result()
	if err != nil {
		return nil, err
	}
	return integers(val, n)
}

// refresh implements store.
func (d *deployment) refresh(ctx context.Context, batch []refresh) []refreshReply {
	keys := d.keysPerCall()
	var calls []*luascript.Call
	for some := range slices.Chunk(batch, keys) {
		args := refreshScript.Args(make([]any, 0, 3+2*len(some)), len(some))
		for _, one := range some {
			args = append(args, one.record)
		}
		for _, one := range some {
			args = append(args, one.entry)
		}
		call := refreshScript.Call(ctx, args, false)
		calls = append(calls, &call)
	}
	_ = luascript.Pipeline(ctx, d.renewer.client(), calls) // each call has its own error
	replies := make([]refreshReply, len(batch))
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
			if some[i].err = err; err == nil {
				its := n[1+3*i:]
				some[i] = refreshReply{
					server: n[0], remaining: time.Duration(its[0]) * time.Millisecond, place: int(its[1]), queued: int(its[2]),
				}
			}
		}
	}
	return replies
}

// extend renews one lease for a caller who waits for it. It reports also whether
// somebody waits for the key.
func (d *deployment) extend(ctx context.Context, op, record, entry string, ttl time.Duration) (owned, waiting bool, err error) {
	key := keyOf(d.prefix, record)
	cmd := d.command(ctx, renewScript, false, record, entry, ttl.Milliseconds())
	cmd.key = key
	r, _, err := d.ask(ctx, op, cmd, max(ttl, replyTimeout), nil)
	if err != nil {
		return false, false, err
	}
	d.recycle(cmd)
	n, err := integers(r.val, 1)
	if err = cmp.Or(r.err, err); err != nil {
		return false, false, unavailable(op, key, err)
	}
	return n[0] > 0, n[0] == 2, nil
}

// releaseRequest is what release.lua is asked for.
type releaseRequest struct {
	record, entry string
	used          int64         // greatest fence used; zero: none
	stay          time.Duration // how long the key is to stay held after the release
	hold          *hold         // whose entry it is, if it is a hold's
	requeue
}

// requeue is another owner token of this process that goes to Redis along with a release.
type requeue struct {
	other string
	mark  any       // how other is to wait; nil: it leaves the queue
	what  string    // what other is
	fresh bool      // other cannot be in the queue yet
	sent  time.Time // if other is to wait: when the request was made
}

type releaseReply struct {
	owned bool
	// If other was to wait:
	fence  int64 // it was granted; zero: it was not
	server int64 // the server's clock in ms
	place  int
	queued int
	// Of a holder's lease.
	remaining time.Duration
}

// release gives up what entry has, even when ctx is dead. It tries again for about
// releaseWait: one try lasts as long as go-redis's time-outs let it.
func (d *deployment) release(ctx context.Context, req releaseRequest) (reply releaseReply, err error) {
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	start, ran := time.Now(), false // whether an earlier try may have run
	for try := range releaseTries {
		if try > 0 {
			time.Sleep(releasePause << (2 * try))
		}
		cmd := d.releaseCommand(ctx, req)
		r := d.do(cmd)
		d.recycle(cmd)
		if reply, err = parseRelease(r); err == nil {
			// After a lost reply "not the owner" is what an earlier try of ours left.
			reply.owned = reply.owned || ran
			if !reply.owned && req.hold != nil && req.hold.renamed(req.entry) {
				req.entry, req.fresh = req.hold.holder(), false
				return d.release(ctx, req)
			}
			return reply, nil
		}
		ran = ran || mayHaveRun(err)
		if time.Since(start) > releaseWait {
			break
		}
	}
	return reply, err
}

func (d *deployment) releaseCommand(ctx context.Context, req releaseRequest) *command {
	mark := req.mark
	if mark == nil {
		mark = notQueued
	}
	return d.command(ctx, releaseScript, true, req.record, req.entry, req.used, req.stay.Milliseconds(), req.other, mark, req.what, req.fresh)
}

func parseRelease(r result) (reply releaseReply, err error) {
	if r.err != nil {
		return reply, r.err
	}
	if owned, ok := r.val.(int64); ok {
		return releaseReply{owned: owned == 1}, nil
	}
	n, err := integers(r.val, 6)
	if err != nil {
		return reply, err
	}
	return releaseReply{
		owned: n[0] == 1, fence: n[1], server: n[2], place: int(n[3]), queued: int(n[4]), remaining: time.Duration(n[5]) * time.Millisecond,
	}, nil
}

// do sends a command for a caller who waits for the reply, whatever happens.
func (d *deployment) do(cmd *command) result {
	batcher := d.batcher(cmd.record)
	switch {
	case batcher.group.Enter():
		defer batcher.group.Leave()
		return batcher.exec(cmd)
	case batcher.submit(cmd):
		return <-cmd.reply
	default: // the Locker is closed, and has no goroutines any more
		return batcher.exec(cmd)
	}
}

const (
	releaseTries = 4
	releasePause = 5 * time.Millisecond // times 4, 16, 64
	releaseWait  = 500 * time.Millisecond
)

// mayHaveRun reports whether a command that failed may have had its effect: not if
// Redis refused it, and not if it was never sent.
func mayHaveRun(err error) bool {
	var refused redis.Error
	var op *net.OpError
	if isUnsent(err) || errors.As(err, &refused) || errors.Is(err, redis.ErrPoolTimeout) {
		return false
	}
	return !errors.As(err, &op) || op.Op != "dial"
}

// ask sends a command and waits for its reply, for as long as the caller can and
// the lease that is asked for may last, and until stop.
// After an error, or when stopped, what comes of the command is taken back. A command
// of which nothing is to be taken back may be sent until the Locker is closed.
func (d *deployment) ask(ctx context.Context, op string, cmd *command, timeout time.Duration, stop <-chan struct{}) (r result, stopped bool, err error) {
	key := cmd.key
	n := d.batcher(cmd.record)
	// A caller who cannot leave goes out itself, as in do, unless the key may come otherwise.
	if ctx.Done() == nil && (stop == nil || cmd.fresh) && n.group.Enter() {
		defer n.group.Leave()
		return n.exec(cmd), false, nil
	}
	if !n.submit(cmd) {
		d.recycle(cmd)
		return r, false, fmt.Errorf("core: %s %q: %w", op, key, ErrClosed)
	}
	closing := d.closing
	if cmd.entry == "" {
		closing = nil
	}
	cmd.timer.Reset(timeout)
	defer cmd.timer.Stop()
	select {
	case r = <-cmd.reply:
		return r, false, nil
	case <-stop:
		stopped = true
	case <-ctx.Done():
		err = callerGone(ctx, op, key)
	case <-cmd.timer.C:
		err = unavailable(op, key, fmt.Errorf("no reply within %s", timeout))
	case <-closing:
		err = fmt.Errorf("core: %s %q: %w", op, key, ErrClosed)
	}
	n.abandon(cmd)
	return r, stopped, err
}
