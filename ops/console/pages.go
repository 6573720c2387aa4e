package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

const (
	fleetEvery = 4 * time.Second // processes tell every 10 s
	redisEvery = 4 * time.Second
	listEvery  = 4 * time.Second
	deadEvery  = 10 * time.Second
)

// together runs reads at once.
func together(reads ...func()) {
	var all sync.WaitGroup
	for _, read := range reads {
		all.Go(read)
	}
	all.Wait()
}

func (c *console) readFleet(ctx context.Context) panel[fleetView] {
	if c.Fleet == nil {
		return panel[fleetView]{}
	}
	return get(ctx, &c.cache, "fleet", fleetEvery, func(ctx context.Context) (fleetView, error) {
		f, err := c.Fleet(ctx)
		if err != nil {
			return fleetView{}, err
		}
		v := newFleetView(f)
		c.history.fleet(&v)
		return v, nil
	})
}

func (c *console) readServers(ctx context.Context) panel[redisView] {
	if c.Redis == nil {
		return panel[redisView]{}
	}
	return get(ctx, &c.cache, "redis", redisEvery, func(ctx context.Context) (redisView, error) { return readRedis(ctx, c.Redis) })
}

// queueView is a queue and who works for it.
type queueView struct {
	Name        string
	Stats       panel[delayqueue.Stats]
	Workers     []workerView
	Slots, Busy int
	Told        bool // it is known who works
}

type workerView struct {
	Worker
	Process *Process
}

// LastClaim is when a worker claimed something last, as far as they tell.
func (q queueView) LastClaim() (last time.Time) {
	for _, w := range q.Workers {
		if w.LastClaim.After(last) {
			last = w.LastClaim
		}
	}
	return last
}

// Unworked reports that work is due and no process tells of a worker.
func (q queueView) Unworked() bool {
	return q.Told && len(q.Workers) == 0 && q.Stats.OK() && q.Stats.Data.Due > 0 && !q.Stats.Data.Paused
}

// Behind reports that work waits for workers too long.
func (q queueView) Behind() bool {
	return q.Stats.OK() && q.Stats.Data.Lateness > time.Minute && !q.Stats.Data.Paused
}

func (c *console) readStats(ctx context.Context, q *delayqueue.Queue) panel[delayqueue.Stats] {
	return get(ctx, &c.cache, "stats "+q.Name(), refresh, func(ctx context.Context) (delayqueue.Stats, error) {
		s, err := q.Stats(ctx)
		if err == nil {
			now := time.Now()
			c.history.gauge("queued "+q.Name(), now, float64(s.Queued))
			c.history.gauge("dead "+q.Name(), now, float64(s.Dead))
			c.history.rates("queue "+q.Name(), now, map[string]counted{"": {at: now, values: map[string]int64{
				"enqueued " + q.Name(): s.Totals.Enqueued, "done " + q.Name(): s.Totals.Done,
			}}})
		}
		return s, err
	})
}

// readQueues reads all queues, and the fleet.
func (c *console) readQueues(ctx context.Context) (queues []queueView, fleet panel[fleetView]) {
	queues = make([]queueView, len(c.Queues))
	reads := []func(){func() { fleet = c.readFleet(ctx) }}
	for i, q := range c.Queues {
		queues[i].Name = q.Name()
		reads = append(reads, func() { queues[i].Stats = c.readStats(ctx, q) })
	}
	together(reads...)
	for i := range queues {
		queues[i].workers(fleet)
	}
	return queues, fleet
}

func (q *queueView) workers(fleet panel[fleetView]) {
	q.Told = fleet.Known && fleet.OK()
	for i := range fleet.Data.Processes {
		p := &fleet.Data.Processes[i]
		for _, w := range p.Workers {
			if w.Queue == q.Name && !w.Stopped {
				q.Workers = append(q.Workers, workerView{w, p})
				q.Slots, q.Busy = q.Slots+w.Slots, q.Busy+w.Running
			}
		}
	}
}

func (c *console) troubledQueues(p *page, queues []queueView) {
	for _, q := range queues {
		troubled(p, "queue "+q.Name, q.Stats)
	}
}

// overview answers "is it us?".
func (c *console) overview(r *http.Request) (*page, error) {
	var (
		queues  []queueView
		fleet   panel[fleetView]
		servers panel[redisView]
	)
	together(func() { queues, fleet = c.readQueues(r.Context()) }, func() { servers = c.readServers(r.Context()) })
	p := &page{Name: "overview", Title: "Overview"}
	troubled(p, "processes", fleet)
	troubled(p, "Redis", servers)
	c.troubledQueues(p, queues)
	v := fleet.Data
	body := struct {
		Areas    []area
		Charts   []chart
		HasFleet bool
		Fleet    fleetView
		Queues   []queueView
		Servers  panel[redisView]
	}{
		Areas: areas(queues, fleet, servers, c.Fleet != nil, c.Redis != nil), HasFleet: c.Fleet != nil, Queues: queues, Servers: servers,
	}
	if c.Fleet != nil {
		body.Charts = append(body.Charts, c.history.chart("Calls", "/s", "calls"), c.history.chart("Not granted at once, or at all", "/s", "refused"),
			c.history.chart("Waiting", "", "waiting"), c.history.chart("Held", "", "held"))
	}
	v.Leases, v.Waits, v.Hot, v.Events = first(v.Leases, 6), first(v.Waits, 6), first(v.Hot, 6), first(v.Events, 8)
	body.Fleet = v
	p.Body = body
	return p, nil
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

// keys answers "which key is stuck?", without asking Redis for a key.
func (c *console) keys(r *http.Request) (*page, error) {
	fleet := c.readFleet(r.Context())
	p := &page{Name: "keys", Title: "Keys"}
	troubled(p, "processes", fleet)
	v := fleet.Data
	v.Leases, v.Waits, v.Hot = first(v.Leases, 32), first(v.Waits, 32), first(v.Hot, 32)
	p.Body = keysBody{HasFleet: c.Fleet != nil, Fleet: v}
	return p, nil
}

type keysBody struct {
	HasFleet bool
	Fleet    fleetView
	Search   *searchBody
}

// lineView is what a queue has of a key.
type lineView struct {
	Queue string
	Line  panel[[]delayqueue.LineEntry]
	More  bool
}

const shownLine = 20

// key answers "who has it, who waits, what is parked?".
func (c *console) key(r *http.Request) (*page, error) {
	key := r.URL.Query().Get("key")
	p := &page{Name: "key", Nav: "keys", Title: "Key", Key: key}
	body := struct {
		Key     string
		Invalid string
		Info    panel[*core.KeyInfo]
		Lines   []lineView
		Leases  []leaseView
		Waits   []waitView
		Events  []eventView
		Hot     *hotView
		Fleet   fleetView
	}{Key: key}
	if err := core.ValidateKey(key); err != nil {
		p.Quiet = true
		if body.Invalid = "A key has 1 to 512 bytes, and none of them is an ASCII control byte."; key == "" {
			body.Invalid = "Enter a key in the box above."
		}
		p.Body = body
		return p, nil
	}
	body.Lines = make([]lineView, len(c.Queues))
	var fleet panel[fleetView]
	reads := []func(){
		func() { fleet = c.readFleet(r.Context()) },
		func() {
			body.Info = get(r.Context(), &c.cache, "key "+key, refresh, func(ctx context.Context) (*core.KeyInfo, error) { return c.Locker.Inspect(ctx, key) })
		},
	}
	for i, q := range c.Queues {
		body.Lines[i].Queue = q.Name()
		reads = append(reads, func() {
			body.Lines[i].Line = get(r.Context(), &c.cache, "line "+q.Name()+" "+key, refresh, func(ctx context.Context) ([]delayqueue.LineEntry, error) {
				line, _, err := q.Line(ctx, key, "", shownLine+1)
				return line, err
			})
		})
	}
	together(reads...)
	troubled(p, "key", body.Info)
	troubled(p, "processes", fleet)
	for i := range body.Lines {
		l := &body.Lines[i]
		troubled(p, "queue "+l.Queue, l.Line)
		if l.More = len(l.Line.Data) > shownLine; l.More {
			l.Line.Data = l.Line.Data[:shownLine]
		}
	}
	v := fleet.Data
	body.Fleet = v
	for _, l := range v.Leases {
		if l.Key == key {
			body.Leases = append(body.Leases, l)
		}
	}
	for _, w := range v.Waits {
		if w.Key == key {
			body.Waits = append(body.Waits, w)
		}
	}
	for _, e := range v.Events {
		if e.Key == key {
			body.Events = append(body.Events, e)
		}
	}
	for i := range v.Hot {
		if v.Hot[i].Key == key {
			body.Hot = &v.Hot[i]
		}
	}
	p.Body = body
	return p, nil
}

func (c *console) queues(r *http.Request) (*page, error) {
	queues, fleet := c.readQueues(r.Context())
	p := &page{Name: "queues", Title: "Queues"}
	troubled(p, "processes", fleet)
	c.troubledQueues(p, queues)
	type row struct {
		queueView
		Depth, Done chart
	}
	var rows []row
	for _, q := range queues {
		rows = append(rows, row{q, c.history.chart("Queued", "", "queued "+q.Name), c.history.chart("Done", "/s", "done "+q.Name)})
	}
	p.Body = rows
	return p, nil
}

// named is the queue of a request.
func (c *console) named(r *http.Request) (*delayqueue.Queue, error) {
	name := r.URL.Query().Get("queue")
	for _, q := range c.Queues {
		if q.Name() == name {
			return q, nil
		}
	}
	return nil, &httpError{http.StatusNotFound, "This console does not know of a queue of that name."}
}

const shownMessages = 50

func (c *console) queue(r *http.Request) (*page, error) {
	q, err := c.named(r)
	if err != nil {
		return nil, err
	}
	p := &page{Name: "queue", Nav: "queues", Title: "Queue " + q.Name()}
	body := struct {
		queueView
		Charts          []chart
		Running, Queued panel[[]delayqueue.Entry]
	}{queueView: queueView{Name: q.Name()}}
	list := func(state delayqueue.State) panel[[]delayqueue.Entry] {
		return get(r.Context(), &c.cache, "list "+string(state)+" "+q.Name(), listEvery, func(ctx context.Context) ([]delayqueue.Entry, error) {
			all, _, err := q.List(ctx, state, "", shownMessages)
			return all, err
		})
	}
	var fleet panel[fleetView]
	together(func() { fleet = c.readFleet(r.Context()) }, func() { body.Stats = c.readStats(r.Context(), q) },
		func() { body.Running = list(delayqueue.StateRunning) }, func() { body.Queued = list(delayqueue.StateQueued) })
	body.workers(fleet)
	troubled(p, "processes", fleet)
	troubled(p, "figures", body.Stats)
	troubled(p, "running messages", body.Running)
	troubled(p, "queued messages", body.Queued)
	for _, s := range []struct{ title, unit, series string }{
		{"Queued", "", "queued "}, {"Enqueued", "/s", "enqueued "}, {"Done", "/s", "done "}, {"Dead letters", "", "dead "},
	} {
		body.Charts = append(body.Charts, c.history.chart(s.title, s.unit, s.series+q.Name()))
	}
	p.Body = body
	return p, nil
}

func (c *console) processes(r *http.Request) (*page, error) {
	fleet := c.readFleet(r.Context())
	p := &page{Name: "processes", Title: "Processes"}
	troubled(p, "processes", fleet)
	p.Body = struct {
		HasFleet bool
		Fleet    fleetView
		Mixed    mixed
	}{c.Fleet != nil, fleet.Data, mixedOf(fleet.Data.Processes)}
	return p, nil
}

func (c *console) process(r *http.Request) (*page, error) {
	id := r.URL.Query().Get("id")
	fleet := c.readFleet(r.Context())
	p := &page{Name: "process", Nav: "processes", Title: "Process"}
	troubled(p, "processes", fleet)
	p.Body = struct {
		ID      string
		Process *Process
		Fleet   fleetView
	}{id, fleet.Data.Of(id), fleet.Data}
	return p, nil
}
