package ops

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/unixms"
)

// entry is the report of a process, as JSON. A reader ignores fields that it does not know, and has the zero value
// of those that are missing. Times are in Unix milliseconds, durations in microseconds. In docs/protocol.md.
type entry struct {
	ID        string       `json:"id"`
	Lockers   []string     `json:"lockers"`
	Host      string       `json:"host,omitempty"`
	PID       int          `json:"pid,omitempty"`
	Version   string       `json:"version,omitempty"`
	Go        string       `json:"go,omitempty"`
	Service   string       `json:"service,omitempty"`
	Started   int64        `json:"started,omitempty"`
	At        int64        `json:"at,omitempty"`
	TTL       int64        `json:"ttl"`
	Since     int64        `json:"since,omitempty"`
	Held      int          `json:"held"`
	Waiting   int          `json:"waiting"`
	Bounds    []int64      `json:"bounds,omitempty"`
	Unclaimed int64        `json:"unclaimed,omitempty"`
	Renewals  wireRenewals `json:"renewals"`
	Cut       int          `json:"cut,omitempty"`

	Idempotency map[string]int64 `json:"idempotency,omitempty"`
	Config      *wireConfig      `json:"config,omitempty"`
	lists
}

// lists are filled as far as there is room.
type lists struct {
	Locks     []wireLocks   `json:"locks"`
	Queues    []wireQueue   `json:"queues"`
	Requests  []wireCounts  `json:"requests"`
	Tasks     []wireCounts  `json:"tasks"`
	Workers   []wireWorker  `json:"workers"`
	Warnings  []wireWarning `json:"warnings"`
	Leases    []wireLease   `json:"leases"`
	Waits     []wireWait    `json:"waits"`
	Conflicts []wireHot     `json:"hot_conflicts"`
	HotWaits  []wireHot     `json:"hot_waits"`
	HotHolds  []wireHot     `json:"hot_holds"`
	Events    []wireEvent   `json:"events"`
}

type (
	wireRenewals struct {
		Leases int64         `json:"leases,omitempty"`
		Failed int64         `json:"failed,omitempty"`
		Took   wireHistogram `json:"took"`
	}
	wireLocks struct {
		Name       text             `json:"name"`
		Calls      map[string]int64 `json:"calls,omitempty"`
		Held       int64            `json:"held,omitempty"`
		Waiting    int64            `json:"waiting,omitempty"`
		Wait       wireHistogram    `json:"wait,omitzero"`
		Hold       wireHistogram    `json:"hold,omitzero"`
		Lost       map[string]int64 `json:"lost,omitempty"`
		Unreleased int64            `json:"unreleased,omitempty"`
	}
	wireQueue struct {
		Queue       text             `json:"queue"`
		Enqueued    map[string]int64 `json:"enqueued,omitempty"`
		Settled     map[string]int64 `json:"settled,omitempty"`
		Redelivered int64            `json:"redelivered,omitempty"`
		Expired     int64            `json:"expired,omitempty"`
		Lag         wireHistogram    `json:"lag,omitzero"`
		KeyWait     wireHistogram    `json:"key_wait,omitzero"`
		Claim       wireHistogram    `json:"claim,omitzero"`
	}
	// wireCounts are those of a route, or of a type of tasks.
	wireCounts struct {
		Name     text             `json:"name"`
		Outcomes map[string]int64 `json:"outcomes,omitempty"`
	}
	wireConfig struct {
		Version int              `json:"version"`
		Hash    string           `json:"hash"`
		Refused bool             `json:"refused,omitempty"`
		Reloads map[string]int64 `json:"reloads,omitempty"`
	}
	wireWorker struct {
		Queue      text   `json:"queue"`
		Service    string `json:"service,omitempty"`
		Partitions int    `json:"partitions,omitempty"`
		Slots      int    `json:"slots"`
		Running    int    `json:"running,omitempty"`
		Claimed    int64  `json:"claimed,omitempty"`
		Paused     bool   `json:"paused,omitempty"`
		Stopped    bool   `json:"stopped,omitempty"`
	}
	wireWarning struct {
		Source string `json:"source"`
		Kind   string `json:"kind"`
		Open   int    `json:"open"`
	}
	wireLease struct {
		Key       text   `json:"key"`
		Name      text   `json:"name,omitempty"`
		Mode      string `json:"mode,omitempty"`
		Fence     int64  `json:"fence"`
		Held      int64  `json:"held"`
		TTL       int64  `json:"ttl"`
		Remaining int64  `json:"remaining"`
		Contended bool   `json:"contended,omitempty"`
	}
	wireWait struct {
		Key    text   `json:"key"`
		Name   text   `json:"name,omitempty"`
		ID     text   `json:"id,omitempty"`
		Mode   string `json:"mode,omitempty"`
		Waited int64  `json:"waited"`
	}
	wireHot struct {
		Key    text    `json:"key"`
		Weight float64 `json:"weight"`
		Error  float64 `json:"error,omitempty"`
	}
	wireEvent struct {
		At     int64  `json:"at"`
		Source string `json:"source"`
		Kind   string `json:"kind"`
		Queue  text   `json:"queue,omitempty"`
		Key    text   `json:"key,omitempty"`
		Name   text   `json:"name,omitempty"`
		ID     text   `json:"id,omitempty"`
		Fence  int64  `json:"fence,omitempty"`
		Took   int64  `json:"took,omitempty"`
		Detail string `json:"detail,omitempty"`
		Count  int64  `json:"count,omitempty"`
	}
	// wireHistogram has the counts of the buckets, without the last that are 0, and that of what is longer than all.
	wireHistogram struct {
		Counts []int64 `json:"counts,omitempty"`
		Over   int64   `json:"over,omitempty"`
		Sum    int64   `json:"sum,omitempty"`
	}
)

// IsZero reports whether the histogram has counted nothing.
func (h wireHistogram) IsZero() bool { return len(h.Counts) == 0 && h.Over == 0 && h.Sum == 0 }

// text is a string of any bytes: in JSON a string if it is UTF-8, and else an array with its base64.
type text string

// MarshalJSON implements [json.Marshaler].
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return encode(string(t))
	}
	return encode([]string{base64.StdEncoding.EncodeToString([]byte(t))})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '[' {
		return json.Unmarshal(b, (*string)(t))
	}
	var encoded []string
	if err := json.Unmarshal(b, &encoded); err != nil {
		return err
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.Join(encoded, ""))
	*t = text(decoded)
	return err
}

// encode is json.Marshal without escapes for HTML, which take six bytes each.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// marshal writes the entry in most bytes. If that is too little, of each list the first are written, as many of each
// as of the others, and Cut says how many were left out.
func (e *entry) marshal(most int) ([]byte, error) {
	all := e.lists
	e.lists = lists{}
	head, err := encode(e)
	if err != nil {
		return nil, err
	}
	used := len(head) + len(`,"cut":10000`)
	open := []list{
		listOf(all.Locks, &e.Locks), listOf(all.Queues, &e.Queues), listOf(all.Requests, &e.Requests), listOf(all.Tasks, &e.Tasks), listOf(all.Workers, &e.Workers), listOf(all.Warnings, &e.Warnings),
		listOf(all.Leases, &e.Leases), listOf(all.Waits, &e.Waits), listOf(all.Conflicts, &e.Conflicts),
		listOf(all.HotWaits, &e.HotWaits), listOf(all.HotHolds, &e.HotHolds), listOf(all.Events, &e.Events),
	}
	for len(open) > 0 {
		next := open[:0]
		for _, add := range open {
			size, more := add(most - used)
			used += size
			if more {
				next = append(next, add)
			}
		}
		open = next
	}
	e.Cut = all.len() - e.len()
	return encode(e)
}

// list puts its next item into an entry, if that has room for it, and returns how long it is and whether more is to be put.
type list func(room int) (size int, more bool)

func listOf[T any](from []T, to *[]T) list {
	*to = []T{} // not null: there is none
	return func(room int) (int, bool) {
		if len(*to) == len(from) {
			return 0, false
		}
		b, err := encode(from[len(*to)])
		if err != nil || len(b)+1 > room {
			return 0, false
		}
		*to = append(*to, from[len(*to)])
		return len(b) + 1, true
	}
}

func (l *lists) len() int {
	return len(l.Locks) + len(l.Queues) + len(l.Requests) + len(l.Tasks) + len(l.Workers) + len(l.Warnings) + len(l.Leases) + len(l.Waits) +
		len(l.Conflicts) + len(l.HotWaits) + len(l.HotHolds) + len(l.Events)
}

var errEntry = errors.New("ops: an entry of a process cannot be read")

// readEntry reads what marshal has written, or that of another version.
func readEntry(b []byte) (entry, error) {
	var e entry
	if err := json.Unmarshal(b, &e); err != nil {
		return entry{}, err
	}
	if e.ID == "" || e.TTL <= 0 {
		return entry{}, errEntry
	}
	return e, nil
}

func newEntry(s Snapshot, local core.Local, workers []delayqueue.Local) *entry {
	e := &entry{
		At: unixms.Of(s.At), Since: unixms.Of(s.Since), Held: local.Held, Waiting: local.Waiting,
		Unclaimed: s.Unclaimed,
		Renewals:  wireRenewals{s.Renewals.Leases, s.Renewals.Failed, wireOf(s.Renewals.Took)},
	}
	for _, bound := range bounds {
		e.Bounds = append(e.Bounds, bound.Microseconds())
	}
	for _, l := range s.Locks {
		e.Locks = append(e.Locks, wireLocks{
			Name: text(l.Name), Calls: nonzero(l.Calls), Held: l.Held, Waiting: l.Waiting, Wait: wireOf(l.Wait), Hold: wireOf(l.Hold),
			Lost: nonzero(l.Lost), Unreleased: l.Unreleased,
		})
	}
	for _, q := range s.Queues {
		e.Queues = append(e.Queues, wireQueue{
			Queue: text(q.Queue), Enqueued: nonzero(q.Enqueued), Settled: nonzero(q.Settled), Redelivered: q.Redelivered, Expired: q.Expired,
			Lag: wireOf(q.Lag), KeyWait: wireOf(q.KeyWait), Claim: wireOf(q.Claim),
		})
	}
	for _, r := range s.Requests {
		e.Requests = append(e.Requests, wireCounts{text(r.Route), nonzero(r.Outcomes)})
	}
	for _, t := range s.Tasks {
		e.Tasks = append(e.Tasks, wireCounts{text(t.Type), nonzero(t.Outcomes)})
	}
	e.Idempotency = nonzero(s.Idempotency)
	if c := s.Config; c != nil {
		e.Config = &wireConfig{c.Version, c.Hash, c.Refused, nonzero(c.Reloads)}
	}
	for _, all := range [][]wireCounts{e.Requests, e.Tasks} {
		busiest(all, func(c wireCounts) int64 { return sum(c.Outcomes) })
	}
	busiest(e.Locks, func(l wireLocks) int64 { return sum(l.Calls) })
	busiest(e.Queues, func(q wireQueue) int64 { return sum(q.Enqueued) + sum(q.Settled) })
	for _, w := range workers {
		e.Workers = append(e.Workers, wireWorker{text(w.Queue), w.Service, w.Partitions, w.Slots, w.Running, unixms.Of(w.LastClaim), w.Paused, w.Stopped})
	}
	for _, w := range s.Warnings {
		e.Warnings = append(e.Warnings, wireWarning(w))
	}
	for _, l := range local.Leases {
		e.Leases = append(e.Leases, wireLease{
			text(l.Key), text(shown(l.Name)), string(l.Mode), l.Fence, l.Held.Microseconds(), l.TTL.Microseconds(), l.Remaining.Microseconds(), l.Contended,
		})
	}
	for _, w := range local.Waits {
		e.Waits = append(e.Waits, wireWait{text(w.Key), text(shown(w.Name)), text(shown(w.ID)), string(w.Mode), w.Waited.Microseconds()})
	}
	e.Conflicts, e.HotWaits, e.HotHolds = wireHotKeys(s.Conflicts), wireHotKeys(s.Waits), wireHotKeys(s.Holds)
	for _, event := range s.Events {
		e.Events = append(e.Events, wireOfEvent(event))
	}
	return e
}

func wireOfEvent(e Event) wireEvent {
	return wireEvent{
		e.At.UnixMilli(), e.Source, e.Kind, text(e.Queue), text(e.Key), text(e.Name), text(e.ID), e.Fence, e.Took.Microseconds(), e.Detail, e.Count,
	}
}

func (e wireEvent) event(process string) Event {
	return Event{
		Process: process, At: time.UnixMilli(e.At), Source: e.Source, Kind: e.Kind, Queue: string(e.Queue), Key: string(e.Key), Name: string(e.Name),
		ID: string(e.ID), Fence: e.Fence, Took: microseconds(e.Took), Detail: e.Detail, Count: e.Count,
	}
}

func wireHotKeys(keys []HotKey) (all []wireHot) {
	for _, k := range keys {
		all = append(all, wireHot{text(k.Key), k.Weight, k.Error})
	}
	return all
}

// busiest puts what has counted most first.
func busiest[T any](all []T, count func(T) int64) {
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(count(b), count(a)) })
}

func sum(counts map[string]int64) (n int64) {
	for _, count := range counts {
		n += count
	}
	return n
}

func nonzero[K ~string](counts map[K]int64) map[string]int64 {
	m := map[string]int64{}
	for kind, n := range counts {
		if n != 0 {
			m[string(kind)] = n
		}
	}
	return m
}

func wireOf(h Histogram) wireHistogram {
	w := wireHistogram{Over: h.Over, Sum: h.Sum.Microseconds()}
	for i, bucket := range h.Buckets {
		if bucket.Count != 0 {
			w.Counts = append(w.Counts, make([]int64, i-len(w.Counts))...)
			w.Counts = append(w.Counts, bucket.Count)
		}
	}
	return w
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
