package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// How old what is shown may be. A page that is open asks every 2 s, so what is a little younger is read each time, or each second time.
const (
	freshEvery  = 1800 * time.Millisecond
	pingEvery   = 900 * time.Millisecond
	slowEvery   = 3800 * time.Millisecond // what costs more; processes report every 10 s
	seldomEvery = 9800 * time.Millisecond
)

// together runs reads at once. If one panics, so does the caller, whose server outlives that.
func together(reads ...func()) {
	var all sync.WaitGroup
	var first atomic.Pointer[any]
	for _, read := range reads {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					first.CompareAndSwap(nil, &p)
				}
			}()
			read()
		})
	}
	all.Wait()
	if p := first.Load(); p != nil {
		panic(*p)
	}
}

func (c *console) readFleet(ctx context.Context) panel[fleetView] {
	return get(ctx, &c.cache, "fleet", slowEvery, func(ctx context.Context) (fleetView, error) {
		f, err := ops.ReadFleet(ctx, c.Redis, c.Locker.Prefix())
		if err != nil {
			return fleetView{}, err
		}
		v := newFleetView(f)
		c.history.fleet(&v)
		return v, nil
	})
}

func (c *console) readServers(ctx context.Context) panel[[]ops.Server] {
	return get(ctx, &c.cache, "redis", slowEvery, func(ctx context.Context) ([]ops.Server, error) {
		read := ops.ReadServers(ctx, c.Redis)
		if err := read.Err; err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(read.Value, func(s ops.Server) bool { return s.Err == nil }) { // what was known is shown
			return nil, read.Value[0].Err
		}
		return read.Value, nil
	})
}

// handle is a queue that there is, or why it cannot be used.
type handle struct {
	name  string
	queue *delayqueue.Queue
	info  delayqueue.Info
	err   error
}

// handles are the queues of the prefix, and those of Options, which come first.
func (c *console) handles(ctx context.Context) panel[[]handle] {
	found := get(ctx, &c.cache, "queues", seldomEvery, func(ctx context.Context) (all []handle, err error) {
		known, err := delayqueue.Queues(ctx, c.Redis, c.Locker.Prefix())
		for _, info := range known {
			h := handle{name: info.Name, info: info, err: info.Err}
			if h.err == nil {
				h.queue, h.err = delayqueue.Open(ctx, c.Redis, info.Name, delayqueue.WithPrefix(c.Locker.Prefix()))
			}
			all = append(all, h)
		}
		return all, err
	})
	all := make([]handle, 0, len(c.Queues)+len(found.Data))
	brief, cancel := context.WithTimeout(ctx, retryTimeout) // they may be on a Redis that is away, and others wait
	defer cancel()
	for _, q := range c.Queues {
		info := get(brief, &c.cache, "info "+q.Name(), seldomEvery, q.Info)
		info.Data.Name = q.Name()
		all = append(all, handle{name: q.Name(), queue: q, info: info.Data})
	}
	for _, h := range found.Data {
		if !slices.ContainsFunc(c.Queues, func(q *delayqueue.Queue) bool { return q.Name() == h.name }) {
			all = append(all, h)
		}
	}
	found.Data = all
	return found
}

// queueView is a queue and who works for it.
type queueView struct {
	Name             string
	Info             delayqueue.Info
	Stats            panel[delayqueue.Stats]
	Parked           map[string]int // of keys that are held for long
	Workers          []workerView
	Slots, Busy      int
	Told             bool // it is known who works
	Unworked, Behind bool // what is found of it
}

type workerView struct {
	delayqueue.Local
	Process *processView
}

func (c *console) readStats(ctx context.Context, h handle) panel[delayqueue.Stats] {
	return get(ctx, &c.cache, "stats "+h.name, freshEvery, func(ctx context.Context) (delayqueue.Stats, error) {
		if h.err != nil {
			return delayqueue.Stats{}, h.err
		}
		s, err := h.queue.Stats(ctx)
		if err == nil {
			now := time.Now()
			c.history.gauge("queued "+h.name, now, float64(s.Queued))
			c.history.gauge("dead "+h.name, now, float64(s.Dead))
			c.history.rates("queue "+h.name, now, map[string]counted{"": {at: now, values: map[string]int64{
				"enqueued " + h.name: s.Totals.Enqueued, "done " + h.name: s.Totals.Done,
			}}})
		}
		return s, err
	})
}

// readQueues reads all queues, and the fleet. known: that there are no others than these.
func (c *console) readQueues(ctx context.Context, p *page) (queues []queueView, known panel[[]handle], fleet panel[fleetView]) {
	together(func() { fleet = c.readFleet(ctx) }, func() {
		known = c.handles(ctx)
		troubled(p, "queues", known)
		queues = make([]queueView, len(known.Data))
		var reads []func()
		for i, h := range known.Data {
			queues[i].Name, queues[i].Info = h.name, h.info
			reads = append(reads, func() { queues[i].Stats = c.readStats(ctx, h) })
		}
		together(reads...)
	})
	troubled(p, "processes", fleet)
	for i := range queues {
		queues[i].workers(fleet)
		troubled(p, "queue "+queues[i].Name, queues[i].Stats)
	}
	return queues, known, fleet
}

// readParked reads what is queued of the keys that are held for long.
func (c *console) readParked(ctx context.Context, queues []queueView, handles []handle, fleet panel[fleetView]) {
	held := (ops.Facts{Fleet: asked(fleet, fleet.Data.Fleet)}).LongHeld()
	if len(held) == 0 {
		return
	}
	var reads []func()
	for i, h := range handles {
		if h.queue == nil || queues[i].Stats.Data.Queued == 0 {
			continue
		}
		reads = append(reads, func() {
			queues[i].Parked = get(ctx, &c.cache, "parked "+h.name, slowEvery, func(ctx context.Context) (map[string]int, error) {
				return ops.ReadParked(ctx, h.queue, held)
			}).Data
		})
	}
	together(reads...)
}

func (q *queueView) workers(fleet panel[fleetView]) {
	for i := range fleet.Data.Processes {
		p := &fleet.Data.Processes[i]
		q.Told = q.Told || p.Workers != nil && fleet.OK()
		for _, w := range p.Workers {
			if w.Queue == q.Name && !w.Stopped {
				q.Workers = append(q.Workers, workerView{w, p})
				q.Slots, q.Busy = q.Slots+w.Slots, q.Busy+w.Running
			}
		}
	}
}

// overview answers "is it us?".
func (c *console) overview(r *http.Request) (*page, error) {
	var (
		queues  []queueView
		known   panel[[]handle]
		fleet   panel[fleetView]
		servers panel[[]ops.Server]
	)
	p := &page{Name: "overview", Title: "Overview"}
	together(func() {
		queues, known, fleet = c.readQueues(r.Context(), p)
		c.readParked(r.Context(), queues, known.Data, fleet)
	}, func() { servers = c.readServers(r.Context()) })
	troubled(p, "Redis servers", servers)
	found := findings(queues, fleet, func(f *ops.Facts) {
		f.Servers, f.Queues.Err = asked(servers, servers.Data), known.Err
	})
	judge(queues, found)
	v := fleet.Data
	v.Leases, v.Waits, v.Hot, v.Events = first(v.Leases, 6), first(v.Waits, 6), first(v.Hot, 6), first(v.Events, 8)
	p.Body = struct {
		Areas   []area
		Charts  []chart
		Fleet   fleetView
		Queues  []queueView
		Known   bool // there are no other queues
		Servers panel[[]ops.Server]
	}{
		areas(found, queues, fleet, servers), []chart{
			c.history.chart("Calls", "/s", "calls"), c.history.chart("Refused or parked", "/s", "refused"),
			c.history.chart("Waiting", "", "waiting"), c.history.chart("Held", "", "held"),
		}, v, queues, known.OK(), servers,
	}
	return p, nil
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

// keys answers "which key is stuck?", without asking Redis for a key.
func (c *console) keys(r *http.Request) (*page, error) {
	fleet := c.readFleet(r.Context())
	p := &page{Name: "keys", Title: "Keys"}
	troubled(p, "processes", fleet)
	v := fleet.Data
	v.Leases, v.Waits, v.Hot = first(v.Leases, 25), first(v.Waits, 15), first(v.Hot, 40)
	p.Body = keysBody{Fleet: v}
	return p, nil
}

type keysBody struct {
	Fleet  fleetView
	Search *searchBody
}

// lineView is what a queue has of a key.
type lineView struct {
	Queue string
	Line  panel[[]delayqueue.LineEntry]
	More  bool
}

const shownLine = 20

// keyBody is the page of a key.
type keyBody struct {
	Key       string
	Invalid   string
	Info      panel[*core.KeyInfo]
	Lines     []lineView
	Waits     []waitView
	Events    []eventView
	Fleet     fleetView
	Watch     *watchView
	MayWatch  bool
	MayUnlock bool
}

// readKey reads what Redis, the queues and the processes have of a key.
func (c *console) readKey(ctx context.Context, body *keyBody) (queues panel[[]handle], fleet panel[fleetView]) {
	queues = c.handles(ctx)
	body.Lines = make([]lineView, len(queues.Data))
	reads := []func(){
		func() { fleet = c.readFleet(ctx) },
		func() {
			body.Info = get(ctx, &c.cache, "key "+body.Key, freshEvery, func(ctx context.Context) (*core.KeyInfo, error) { return c.Locker.Inspect(ctx, body.Key) })
		},
	}
	for i, h := range queues.Data {
		body.Lines[i].Queue = h.name
		reads = append(reads, func() {
			body.Lines[i].Line = get(ctx, &c.cache, "line "+h.name+" "+body.Key, freshEvery, func(ctx context.Context) (line []delayqueue.LineEntry, err error) {
				if err = h.err; err == nil {
					line, _, err = h.queue.Line(ctx, body.Key, "", shownLine+1)
				}
				return line, err
			})
		})
	}
	together(reads...)
	return queues, fleet
}

// key answers "who has it, who waits, what is parked?".
func (c *console) key(r *http.Request) (*page, error) {
	key, err := c.names.of(r.URL.Query().Get("key"))
	if err != nil {
		return nil, err
	}
	p := &page{Name: "key", Nav: "keys", Title: "Key", Key: key}
	body := keyBody{Key: key, MayWatch: c.allowed(r, Watch), MayUnlock: c.allowed(r, ops.ActionUnlock)}
	if err := core.ValidateKey(key); err != nil {
		p.Quiet = true
		if body.Invalid = "A key has 1 to 512 bytes, and none of them is an ASCII control byte."; key == "" {
			body.Invalid = "Enter a key in the box above."
		}
		p.Body = body
		return p, nil
	}
	queues, fleet := c.readKey(r.Context(), &body)
	troubled(p, "queues", queues)
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
	for i := range p.Trouble {
		p.Trouble[i].Key = key
	}
	if body.MayWatch {
		body.Watch, p.Changed = c.watches.look(key, v)
	}
	p.Body = body
	return p, nil
}

func (c *console) queues(r *http.Request) (*page, error) {
	p := &page{Name: "queues", Title: "Queues"}
	queues, known, fleet := c.readQueues(r.Context(), p)
	judge(queues, findings(queues, fleet, nil))
	type row struct {
		queueView
		Depth, Done chart
	}
	var rows []row
	for _, q := range queues {
		rows = append(rows, row{q, c.history.chart("Queued", "", "queued "+q.Name), c.history.chart("Done", "/s", "done "+q.Name)})
	}
	p.Body = struct {
		Rows  []row
		Known bool
	}{rows, known.OK()}
	return p, nil
}

// named is the queue of a request.
func (c *console) named(r *http.Request) (handle, error) {
	name := r.FormValue("queue")
	all := c.handles(r.Context())
	for _, h := range all.Data {
		if h.name == name {
			return h, nil
		}
	}
	// It may be newer than what was read, or of a release that kept no list of queues.
	q := get(r.Context(), &c.cache, "open "+name, freshEvery, func(ctx context.Context) (*delayqueue.Queue, error) {
		return delayqueue.Open(ctx, c.Redis, name, delayqueue.WithPrefix(c.Locker.Prefix()))
	})
	switch {
	case errors.Is(q.Err, delayqueue.ErrNoQueue), errors.Is(q.Err, core.ErrInvalidOption):
		return handle{}, &httpError{http.StatusNotFound, "There is no queue of that name under this prefix."}
	case q.Known:
		return handle{name: name, queue: q.Data}, nil
	case errors.Is(q.Err, core.ErrUnavailable), errors.Is(q.Err, errNoAnswer), errors.Is(q.Err, errBusy), errors.Is(q.Err, context.DeadlineExceeded):
		return handle{}, &httpError{http.StatusServiceUnavailable, "Redis does not answer, so it is not known whether there is such a queue."}
	}
	return handle{name: name, err: q.Err}, nil
}

const shownMessages = 50

// list reads the first messages of a state.
func (c *console) list(ctx context.Context, h handle, state delayqueue.State, every time.Duration, n int) panel[[]delayqueue.Entry] {
	return get(ctx, &c.cache, "list "+string(state)+" "+h.name, every, func(ctx context.Context) (all []delayqueue.Entry, err error) {
		if err = h.err; err == nil {
			all, _, err = h.queue.List(ctx, state, "", n)
		}
		return all, err
	})
}

func (c *console) queue(r *http.Request) (*page, error) {
	h, err := c.named(r)
	if err != nil {
		return nil, err
	}
	p := &page{Name: "queue", Nav: "queues", Title: "Queue " + h.name}
	body := struct {
		queueView
		Charts          []chart
		Running, Queued panel[[]delayqueue.Entry]
		May             []ops.Action
	}{queueView: queueView{Name: h.name, Info: h.info}}
	list := func(state delayqueue.State) panel[[]delayqueue.Entry] {
		return c.list(r.Context(), h, state, slowEvery, shownMessages)
	}
	var fleet panel[fleetView]
	together(func() { fleet = c.readFleet(r.Context()) }, func() { body.Stats = c.readStats(r.Context(), h) },
		func() { body.Running = list(delayqueue.StateRunning) }, func() { body.Queued = list(delayqueue.StateQueued) })
	body.workers(fleet)
	one := []queueView{body.queueView}
	judge(one, findings(one, fleet, nil))
	body.queueView = one[0]
	body.May = c.may(r, ops.ActionPause)
	if body.Stats.Data.Paused {
		body.May = c.may(r, ops.ActionResume)
	}
	troubled(p, "processes", fleet)
	troubled(p, "figures", body.Stats)
	troubled(p, "running messages", body.Running)
	troubled(p, "queued messages", body.Queued)
	for _, s := range []struct{ title, unit, series string }{
		{"Queued", "", "queued "}, {"Enqueued", "/s", "enqueued "}, {"Done", "/s", "done "}, {"Dead letters", "", "dead "},
	} {
		body.Charts = append(body.Charts, c.history.chart(s.title, s.unit, s.series+h.name))
	}
	p.Body = body
	return p, nil
}

func (c *console) processes(r *http.Request) (*page, error) {
	fleet := c.readFleet(r.Context())
	p := &page{Name: "processes", Title: "Processes"}
	troubled(p, "processes", fleet)
	p.Body = struct {
		Fleet    fleetView
		Findings []ops.Finding
	}{fleet.Data, slices.DeleteFunc(findings(nil, fleet, nil), func(f ops.Finding) bool {
		return f.Area != ops.AreaFleet || f.Severity == ops.SeverityUnknown // which the page says already
	})}
	return p, nil
}

func (c *console) process(r *http.Request) (*page, error) {
	id := r.URL.Query().Get("id")
	fleet := c.readFleet(r.Context())
	p := &page{Name: "process", Nav: "processes", Title: "Process"}
	troubled(p, "processes", fleet)
	p.Body = struct {
		ID      string
		Process *processView
		Fleet   fleetView
	}{id, fleet.Data.Of(id), fleet.Data}
	return p, nil
}
