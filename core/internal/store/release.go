package store

// Releases, for a caller that waits and in the background.

import (
	"context"
	"sync"
	"time"
)

// Release retries for about releaseWait: one try takes up to ReplyTimeout.
func (d *deployment) Release(ctx context.Context, req ReleaseRequest) (reply ReleaseReply, err error) {
	start, ran := time.Now(), false // whether an earlier try may have run
	once := req.Briefly && d.batcher(req.Record).isDown()
	for try := range releaseTries {
		if try > 0 {
			time.Sleep(releasePause << (2 * try))
		}
		r, twice := d.do(d.releaseCommand(ctx, req))
		if r.ride != nil {
			req.Along.Released(r.ride)
		}
		if reply, err = parseRelease(r); err == nil {
			r.said(reply.Server)
			// After a lost reply, or if a client's hook sends it twice, "not the owner" can be the result of our own
			// earlier try.
			reply.Owned = reply.Owned || ran || twice
			if !reply.Owned && req.rekeyed() {
				return d.Release(ctx, req)
			}
			return reply, nil
		}
		ran = ran || MayHaveRun(err)
		if once || time.Since(start) > releaseWait {
			break
		}
	}
	return reply, err
}

func (d *deployment) releaseCommand(ctx context.Context, req ReleaseRequest) *command {
	cmd := d.command(ctx, releaseScript, true, req.Record)
	cmd.takeAlong(d, req.Along)
	cmd.addText(req.Token)
	cmd.used.Reset(req.Used)
	cmd.add(&cmd.used)
	keep := max(time.Until(req.KeptUntil), 0) // as of this try
	asked, more := req.Asked || req.Wanted, keep > 0 || req.Other != "" || req.Unreserve
	if asked || more {
		cmd.add(asked)
	}
	cmd.plain = d.single && !asked && !more
	if more {
		cmd.args = append(cmd.args, keep.Milliseconds(), req.Other, marks[req.Mark], req.What, req.Fresh)
	}
	if req.Mark != NotQueued {
		d.addBound(cmd, false)
	}
	if req.Unreserve {
		if req.Mark == NotQueued {
			cmd.add(0)
		}
		cmd.add(true)
	}
	// Where there is no subscription PING may be forbidden; and a Cluster could send it to another node.
	cmd.publishes = req.Wanted && d.single && d.Listening()
	return cmd
}

func parseRelease(r result) (reply ReleaseReply, err error) {
	if r.err != nil {
		return reply, r.err
	}
	if owned, ok := r.val.(int64); ok {
		return ReleaseReply{Owned: owned&1 > 0, Reserved: owned&2 > 0}, nil
	}
	n, err := integers(r.val, 7)
	if err != nil {
		return reply, err
	}
	return ReleaseReply{
		Owned: n[0]&1 > 0, Reserved: n[0]&2 > 0, Fence: n[1],
		Standing: Standing{milliseconds(n[5]), n[2], n[6], int(n[3]), int(n[4])},
	}, nil
}

const (
	releaseTries = 4
	releasePause = 5 * time.Millisecond // times 4, 16, 64
	releaseWait  = 500 * time.Millisecond
)

// cancellations are the releases that no caller waits for: of a token that may hold a key without
// our knowing it, and of a lease whose release has failed. Each is sent at once, and again while
// Redis does not answer, until there is nothing left to release.
type cancellations struct {
	d *deployment

	mu       sync.Mutex
	failed   []cancellation // to be sent again
	retrying bool
}

type cancellation struct {
	req   ReleaseRequest
	until time.Time        // when the grant has expired anyway
	done  func(owned bool) // called when Redis has replied
}

const (
	cancelPause = 100 * time.Millisecond
	// maxCancels bounds how many are sent again. A grant beyond that expires.
	maxCancels = 1024
)

// send sends a cancellation. It does not block, and reports false when the Locker is closed.
func (c *cancellations) send(one cancellation) bool {
	d := c.d
	cmd := d.releaseCommand(context.Background(), one.req)
	cmd.onReply = func(r result) {
		reply, err := parseRelease(r)
		switch {
		case err != nil:
			c.retryLater(one)
		case !reply.Owned && one.req.rekeyed():
			_ = c.send(one)
		case one.done != nil:
			one.done(reply.Owned)
		}
	}
	return d.batcher(one.req.Record).submit(cmd)
}

func (c *cancellations) retryLater(one cancellation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(one.until) || len(c.failed) >= maxCancels {
		return
	}
	c.failed = append(c.failed, one)
	if !c.retrying {
		c.retrying = c.d.life.Background(c.retry)
	}
}

func (c *cancellations) retry() {
	select {
	case <-time.After(cancelPause):
	case <-c.d.life.Closing():
	}
	c.mu.Lock()
	failed := c.failed
	c.failed, c.retrying = nil, false
	c.mu.Unlock()
	if c.d.life.Open() {
		for _, one := range failed {
			_ = c.send(one)
		}
	}
}

func (d *deployment) Cancel(req ReleaseRequest, ttl time.Duration, done func(owned bool)) bool {
	return d.cancellations.send(cancellation{req, time.Now().Add(ttl), done})
}
