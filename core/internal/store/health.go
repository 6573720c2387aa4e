package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// health is whether a node answers. A node is down when a command failed after go-redis's own
// retries, or when nothing has come back for ReplyTimeout and a probe does not either. Then its
// batcher sends it nothing but probes, and every command fails at once: callers learn of the
// outage without waiting for one another, and nothing piles up that Redis would have to do when
// it is back. Renewals go on: they have connections of their own.
type health struct {
	// How many flights are out, and since when, in nanoseconds, none of them has been answered.
	flights, quiet atomic.Int64
	suspected      atomic.Bool // a probe is out, after a silence
}

const (
	// A probe is sent at once, and then at pauses that grow between these two.
	probePauseMin, probePauseMax = 20 * time.Millisecond, 250 * time.Millisecond
	// A probe that has no answer by then is given up.
	probeTimeout = 300 * time.Millisecond
)

var errNoReply = errors.New("no reply to anything for " + ReplyTimeout.String())

// sends notes that a flight goes out.
func (h *health) sends() {
	if h.flights.Add(1) == 1 {
		h.quiet.Store(time.Now().UnixNano())
	}
}

// returns notes that a flight is back, with the node's answer unless err says otherwise.
func (h *health) returns(err error) {
	if h.flights.Add(-1) > 0 && !isUnreachable(err) && !SaysNothing(err) {
		h.quiet.Store(time.Now().UnixNano())
	}
}

// suspect has a node probed of which nothing has come back for too long: one connection
// may be dead, or this process was stopped.
func (n *batcher) suspect(now time.Time) {
	silent := n.flights.Load() > 0 && now.UnixNano()-n.quiet.Load() > int64(ReplyTimeout)
	if !silent || !n.suspected.CompareAndSwap(false, true) {
		return
	}
	n.d.life.Background(func() {
		defer n.suspected.Store(false)
		if !n.alive() {
			n.fail(errNoReply)
			return
		}
		n.quiet.Store(time.Now().UnixNano())
	})
}

// fail takes the node for down. Every command that waits to be sent fails. Of a Cluster whose
// slots are not known yet it cannot tell which node failed.
func (n *batcher) fail(err error) {
	if n.d.cluster != nil && n.node == nil {
		return
	}
	down := unsentError{err}
	queue, up := n.group.Refuse(down)
	if !up {
		return
	}
	for _, c := range queue {
		n.d.deliver(c, result{err: down})
	}
	n.warn(Warning{Detail: "calls fail until it answers", Err: err})
	n.d.life.Background(n.probe)
}

// probe asks the node until it answers, and takes it for up then.
func (n *batcher) probe() {
	for pause := probePauseMin; !n.alive(); pause = min(2*pause, probePauseMax) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-n.d.life.Over():
			timer.Stop()
			return
		}
		n.d.forgetGone()
		if !n.group.Refuses() {
			return
		}
	}
	if n.group.Accept() { // else it was forgotten
		n.d.events.LookAgain()
		n.warn(Warning{Resolved: true})
	}
}

func (n *batcher) warn(w Warning) {
	w.Kind = WarnUnreachable
	if n.node != nil {
		w.Node = n.node.Options().Addr
	}
	n.d.events.Warn(w)
}

// alive reports whether the node answers, whatever it says, to a renewal of nothing: a
// command for which the Locker has the rights.
func (n *batcher) alive() bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var rdb redis.Cmdable = n.d.rdb
	if client, ok := n.d.rdb.(*redis.Client); ok {
		rdb = client.WithTimeout(probeTimeout)
	} else if n.node != nil {
		rdb = n.node.WithTimeout(probeTimeout)
	}
	err := rdb.EvalSha(ctx, renewScript.Hash(), []string{RecordName(n.d.prefix, "probe")}, "", 1).Err()
	return !isUnreachable(err) && !SaysNothing(err)
}
