package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// health tracks whether a node answers. A node is down when a command has failed after its retries,
// or when no reply has arrived for ReplyTimeout and a probe has none either. Then its batcher sends
// only probes, and every command fails at once: callers learn of the outage without waiting for one
// another, and Redis finds no backlog when it is back. Renewals go on: they have connections of
// their own.
type health struct {
	// How many pipelines are in flight, and since when, in nanoseconds, there has been no reply.
	flights, quiet atomic.Int64
	suspected      atomic.Bool // a probe is in flight, after a silence
}

const (
	// The pauses between probes grow between these two. The first is sent at once.
	probePauseMin, probePauseMax = 20 * time.Millisecond, 250 * time.Millisecond
	// A probe without a reply is given up after this time.
	probeTimeout = 300 * time.Millisecond
)

var errNoReply = errors.New("no reply to anything for " + ReplyTimeout.String())

// sends records that a pipeline is sent.
func (h *health) sends() {
	if h.flights.Add(1) == 1 {
		h.quiet.Store(time.Now().UnixNano())
	}
}

// returns records that a pipeline has returned, with the node's reply unless err says otherwise.
func (h *health) returns(err error) {
	if h.flights.Add(-1) > 0 && !isUnreachable(err) && !SaysNothing(err) {
		h.quiet.Store(time.Now().UnixNano())
	}
}

// suspect has the node probed if there has been no reply for too long: one connection may be dead,
// or this process was stopped.
func (b *batcher) suspect(now time.Time) {
	silent := b.flights.Load() > 0 && now.UnixNano()-b.quiet.Load() > int64(ReplyTimeout)
	if !silent || !b.suspected.CompareAndSwap(false, true) {
		return
	}
	b.d.life.Background(func() {
		defer b.suspected.Store(false)
		if !b.alive() {
			b.fail(errNoReply)
			return
		}
		b.quiet.Store(time.Now().UnixNano())
	})
}

// fail marks the node as down. Every command that waits to be sent fails. For a Cluster whose slots
// are not known yet it cannot tell which node failed.
func (b *batcher) fail(err error) {
	if b.d.cluster != nil && b.node == nil {
		return
	}
	down := unsentError{err}
	queue, up := b.group.Refuse(down)
	if !up {
		return
	}
	for _, c := range queue {
		b.d.deliver(c, result{err: down})
	}
	b.warn(Warning{Detail: "calls fail until it answers", Err: err})
	b.d.life.Background(b.probe)
}

// probe probes the node until it answers, and then marks it as up.
func (b *batcher) probe() {
	for pause := probePauseMin; !b.alive(); pause = min(2*pause, probePauseMax) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.d.life.Over():
			timer.Stop()
			return
		}
		b.d.forgetGone()
		if !b.group.Refuses() {
			return
		}
	}
	if b.group.Accept() { // else it was forgotten
		b.d.events.LookAgain()
		b.warn(Warning{Resolved: true})
	}
}

func (b *batcher) warn(w Warning) {
	w.Kind = WarnUnreachable
	if b.node != nil {
		w.Node = b.node.Options().Addr
	}
	b.d.events.Warn(w)
}

// alive reports whether the node answers, with whatever reply, to a renewal of nothing: a command
// for which the Locker has the rights.
func (b *batcher) alive() bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var rdb redis.Cmdable = b.d.rdb
	if client, ok := b.d.rdb.(*redis.Client); ok {
		rdb = client.WithTimeout(probeTimeout)
	} else if b.node != nil {
		rdb = b.node.WithTimeout(probeTimeout)
	}
	err := rdb.EvalSha(ctx, renewScript.Hash(), []string{RecordName(b.d.prefix, "probe")}, "", 1).Err()
	return !isUnreachable(err) && !SaysNothing(err)
}
