package core_test

import (
	"context"
	"sync/atomic"

	"github.com/perkey-go/perkey/core"
)

type tally struct {
	core.NopObserver
	n atomic.Int64
}

func (o *tally) OnOutcome(context.Context, core.Outcome) { o.n.Add(1) }
