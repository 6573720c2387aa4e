package delayqueue

import (
	"strconv"
	"time"
)

var (
	statusFields = []string{"key", "name", "principal", "state", "attempts", "conflicts", "losses", "enqueued", "not_after", "cause"}
	entryFields  = append([]string{"due", "ended"}, statusFields...)
)

// record is a message's record, or part of it, as it was read. What is missing
// or unreadable is zero: the scripts judge records, reading them only shows.
type record map[string]string

func readRecord(fields []string, values []any) record {
	r := make(record, len(fields))
	for i, field := range fields {
		if i >= len(values) {
			break
		}
		if s, ok := values[i].(string); ok {
			r[field] = s
		}
	}
	return r
}

func (r record) text(field string) string { return r[field] }

func (r record) count(field string) int {
	n, _ := strconv.Atoi(r[field])
	return n
}

func (r record) time(field string) time.Time {
	ms, err := strconv.ParseInt(r[field], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func (r record) status(id string) Status {
	return Status{
		ID: id, Key: r.text("key"), Name: r.text("name"), Principal: r.text("principal"), State: State(r.text("state")),
		Attempts: r.count("attempts"), Conflicts: r.count("conflicts"), Losses: r.count("losses"),
		EnqueuedAt: r.time("enqueued"), ExpiresAt: r.time("not_after"), Cause: r.text("cause"),
	}
}
