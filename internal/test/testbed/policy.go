package testbed

import (
	"context"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
)

// TicketID is the id of every ticket of Parking.
const TicketID = "0123456789abcdef0123456789abcdef"

// Parking is a policy that keeps what it defers. It is safe for concurrent use.
type Parking struct {
	mu       sync.Mutex
	payloads [][]byte
}

// OnConflict implements core.ConflictPolicy.
func (p *Parking) OnConflict(_ context.Context, c core.Conflict) (core.Decision, error) {
	if c.Call.Encode == nil {
		return core.Reject(), nil
	}
	payload, err := c.Call.Encode()
	if err != nil {
		return core.Reject(), err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.payloads = append(p.payloads, payload)
	return core.Deferred(core.Ticket{ID: TicketID, Queue: "ship", ExpiresAt: time.UnixMilli(1800000000123)}), nil
}

// Parked returns what was deferred.
func (p *Parking) Parked() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.payloads
}

// Failing is a policy that answers every conflict with an error.
type Failing struct{ Err error }

// OnConflict implements core.ConflictPolicy.
func (p Failing) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), p.Err
}

// Patient is a policy that waits for the release and nothing else.
type Patient struct{}

// OnConflict implements core.ConflictPolicy.
func (Patient) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.RetryAfter(time.Hour), nil
}
