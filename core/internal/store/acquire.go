package store

// How a deployment grants keys: one, several at once, or beside a holder.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

func (d *deployment) Acquire(ctx context.Context, req AcquireRequest, stop <-chan struct{}) (reply AcquireReply, stopped bool, err error) {
	cmd := d.acquireCommand(ctx, &req)
	cmd.token, cmd.fresh = req.Token, req.Fresh
	cmd.takeAlong(d, req.Along)
	r, stopped, err := d.ask(ctx, "acquire", cmd, req.Timeout, stop)
	if err != nil || stopped {
		return reply, stopped, err
	}
	defer d.recycle(cmd)
	if r.late() {
		return d.Acquire(ctx, req.anew(), stop)
	}
	if reply, err = parseAcquire(r); err != nil {
		if !Unsent(err) { // else the token is as it was
			d.undo(cmd, r)
		}
		return reply, false, Unavailable("acquire", d.key(cmd), err)
	}
	r.said(reply.time())
	if reply.Granted {
		if r.ride != nil {
			req.Along.Acquired(r.ride)
		}
		if err = late(ctx, d.key(cmd), req.Sent, req.Lease); err != nil {
			d.undo(cmd, r)
		}
	}
	return reply, false, err
}

func (d *deployment) acquireCommand(ctx context.Context, req *AcquireRequest) *command {
	cmd := d.command(ctx, acquireScript, false, req.Record)
	cmd.addText(req.Token)
	cmd.addNumber(req.Lease.Milliseconds())
	d.addBound(cmd, req.again)
	cluster, parked := d.cluster != nil, req.Reserve > 0
	more := cluster || parked || req.Mark != NotQueued || req.Watch != ""
	if more || req.What != "" {
		cmd.addText(req.What)
	}
	if more {
		cmd.args = append(cmd.args, marks[req.Mark], req.Watch)
	}
	if cluster || parked {
		cmd.args = append(cmd.args, req.Reserve.Milliseconds())
	}
	if cluster {
		cmd.args = append(cmd.args, true)
	}
	cmd.plain = d.single && !parked && req.Watch == "" && !req.again
	return cmd
}

// anew is a request that was refused as one that came late: the server's clock was set forward, or this process was stopped in the
// middle of it. It has no bound.
func (r AcquireRequest) anew() AcquireRequest {
	r.again, r.Timeout = true, max(r.Timeout-time.Since(r.Sent), time.Millisecond)
	return r
}

// late returns why a grant whose reply just arrived is of no use, or nil: the caller has left, or
// it took too long.
func late(ctx context.Context, key string, sent time.Time, lease time.Duration) error {
	if ctx.Err() != nil {
		return CallerGone(ctx, "acquire", key)
	}
	if trust.Passed(trust.Until(sent, lease), time.Now()) {
		return Unavailable("acquire", key, fmt.Errorf("the reply took %s, longer than the first lease", time.Since(sent)))
	}
	return nil
}

func parseAcquire(r result) (reply AcquireReply, err error) {
	if r.err != nil {
		return reply, r.err
	}
	if fence, ok := r.val.(int64); ok {
		return AcquireReply{Granted: true, Fence: fence, Room: true}, nil
	}
	n, err := integers(r.val, 3)
	switch {
	case err != nil:
		return reply, err
	case n[0] == 1:
		return AcquireReply{Granted: true, Fence: n[1], Waiting: n[2] == 1, Reserved: n[2] == 2, Standing: Standing{Server: append(n, 0)[3]}}, nil
	case len(n) < 6:
		return reply, errShape
	}
	return AcquireReply{UnknownFormat: n[3] < 0, Standing: Standing{milliseconds(n[1]), n[2], n[5], max(int(n[3]), 0), int(n[4])}}, nil
}

// time is the server's, in ms: a new fence is not less.
func (r *AcquireReply) time() int64 { return cmp.Or(r.Server, r.Fence/1000) }

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

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

func (d *deployment) AcquireAll(ctx context.Context, records []string, req AcquireRequest) (reply AcquireAllReply, err error) {
	req.Record = records[0]
	cmd := d.command(ctx, acquireAllScript, false, req.Record)
	cmd.token, cmd.records = req.Token, records
	cmd.args = acquireAllScript.Args(cmd.args[:0], len(records))
	for _, record := range records {
		cmd.add(record)
	}
	cmd.args = append(cmd.args, req.Token, req.Lease.Milliseconds())
	d.addBound(cmd, req.again)
	cmd.add(req.What)
	r, _, err := d.ask(ctx, "acquire", cmd, req.Timeout, nil)
	if err != nil {
		return reply, err
	}
	defer d.recycle(cmd)
	if r.late() {
		return d.AcquireAll(ctx, records, req.anew())
	}
	n, err := integers(r.val, 4)
	grants := grantsOf(n, len(records))
	if err = cmp.Or(r.err, err); err == nil && n[0] == 1 && grants == nil {
		err = errShape
	}
	switch {
	case err != nil:
		err = Unavailable("acquire", d.key(cmd), err)
	case n[0] == 0:
		return AcquireAllReply{Held: int(n[1]) - 1, Standing: Standing{Remaining: milliseconds(n[2]), Queued: int(n[3])}}, nil
	default:
		r.said(append(n, 0)[1+2*len(records)])
		err = late(ctx, d.key(cmd), req.Sent, req.Lease)
	}
	if err != nil {
		d.undo(cmd, r)
		return reply, err
	}
	return AcquireAllReply{Grants: grants}, nil
}

// grantsOf returns the grants in a reply of acquireall.lua, or nil if there are none.
func grantsOf(n []int64, keys int) (grants []AcquireReply) {
	if len(n) < 1+2*keys || n[0] != 1 {
		return nil
	}
	for i := range keys {
		grants = append(grants, AcquireReply{Granted: true, Fence: n[1+2*i], Waiting: n[2+2*i] == 1})
	}
	return grants
}

func (d *deployment) Admit(record, leader string, fence int64, followers []Follower, done func(fences []int64, err error)) {
	d.admit(record, leader, fence, followers, done, false)
}

func (d *deployment) admit(record, leader string, fence int64, followers []Follower, done func([]int64, error), again bool) {
	cmd := d.command(context.Background(), admitScript, false, record, leader, fence)
	d.addBound(cmd, again)
	for i := range followers {
		m := &followers[i]
		cmd.args = append(cmd.args, &m.Token, m.Lease.Milliseconds(), &m.What)
	}
	cmd.onReply = func(r result) {
		if r.late() {
			d.admit(record, leader, fence, followers, done, true)
			return
		}
		fences, err := []int64(nil), r.err
		if err == nil {
			fences, err = integers(r.val, len(followers))
		}
		done(fences, err)
	}
	_ = d.batcher(record).submit(cmd)
}
