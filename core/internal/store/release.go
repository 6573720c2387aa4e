package store

import (
	"context"
	"time"
)

// Release tries again for about releaseWait: one try lasts as long as
// go-redis's time-outs let it.
func (d *deployment) Release(ctx context.Context, req ReleaseRequest) (reply ReleaseReply, err error) {
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
			reply.Owned = reply.Owned || ran
			if !reply.Owned && req.rekeyed() {
				return d.Release(ctx, req)
			}
			return reply, nil
		}
		ran = ran || MayHaveRun(err)
		if time.Since(start) > releaseWait {
			break
		}
	}
	return reply, err
}

func (d *deployment) releaseCommand(ctx context.Context, req ReleaseRequest) *command {
	return d.command(ctx, releaseScript, true, req.Record, req.Token, req.Used, req.Stay.Milliseconds(), req.Other, marks[req.Mark], req.What, req.Fresh)
}

func parseRelease(r result) (reply ReleaseReply, err error) {
	if r.err != nil {
		return reply, r.err
	}
	if owned, ok := r.val.(int64); ok {
		return ReleaseReply{Owned: owned == 1}, nil
	}
	n, err := integers(r.val, 6)
	if err != nil {
		return reply, err
	}
	return ReleaseReply{Owned: n[0] == 1, Fence: n[1], Standing: Standing{milliseconds(n[5]), n[2], int(n[3]), int(n[4])}}, nil
}

const (
	releaseTries = 4
	releasePause = 5 * time.Millisecond // times 4, 16, 64
	releaseWait  = 500 * time.Millisecond
)
