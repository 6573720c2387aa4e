package delayqueue

import (
	"strconv"
	"time"
)

var (
	statusFields = []string{"name", "state", "attempts", "conflicts", "losses", "enqueued", "not_after", "cause"}
	letterFields = append([]string{"key", "payload", "died"}, statusFields...)
)

// record is a message's record, or part of it, as it was read. What is missing
// or unreadable is zero: the scripts judge records, reading them only shows.
type record map[string]string

func readRecord(fields []string, values []any) record {
	r := make(record, len(fields))
	for i, field := range fields {
		if i < len(values) {
			r[field], _ = values[i].(string)
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
