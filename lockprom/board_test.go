package lockprom_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write deploy/grafana/perkey.json")

const boardFile = "../deploy/grafana/perkey.json"

// panel is a graph of the board. A query's legend is the labels that it is summed by.
type panel struct {
	title, unit, help string
	queries           []query
}

type query struct{ expr, legend string }

// The board, row by row.
var board = []struct {
	row    string
	panels []panel
}{
	{"Locks", []panel{
		{"Calls by outcome", "ops", "How calls for keys end. Each call has exactly one outcome.", []query{{`sum by (outcome) (rate(perkey_lock_calls_total{name=~"$name"}[$__rate_interval]))`, "{{outcome}}"}}},
		{"Calls without their key", "percentunit", "Calls that were refused, shed or ran out of time, of all calls of their name.", []query{{`sum by (name) (rate(perkey_lock_calls_total{name=~"$name", outcome=~"conflict|shed|deadline"}[$__rate_interval])) / sum by (name) (rate(perkey_lock_calls_total{name=~"$name"}[$__rate_interval]))`, "{{name}}"}}},
		{"Calls that wait", "short", "Calls that wait for their key now.", []query{{`sum by (name) (perkey_lock_waiting{name=~"$name"})`, "{{name}}"}}},
		{"Wait, p50 and p99", "s", "Time from the start to the end of calls that waited.", []query{
			{`histogram_quantile(0.5, sum by (le) (rate(perkey_lock_wait_seconds_bucket{name=~"$name"}[$__rate_interval])))`, "p50"},
			{`histogram_quantile(0.99, sum by (le) (rate(perkey_lock_wait_seconds_bucket{name=~"$name"}[$__rate_interval])))`, "p99"},
		}},
		{"Hold, p99", "s", "Time for which leases are held.", []query{{`histogram_quantile(0.99, sum by (name, le) (rate(perkey_lock_hold_seconds_bucket{name=~"$name"}[$__rate_interval])))`, "{{name}}"}}},
		{"Leases held", "short", "Leases held now.", []query{{`sum by (name) (perkey_lock_held{name=~"$name"})`, "{{name}}"}}},
		{"Leases lost", "short", "Leases that ended before their release.", []query{{`sum by (name, cause) (increase(perkey_lock_lost_total{name=~"$name"}[$__rate_interval]))`, "{{name}} {{cause}}"}}},
		{"Releases that did not reach Redis", "short", "Their keys stay held until their leases end.", []query{{`sum by (name) (increase(perkey_lock_unreleased_total{name=~"$name"}[$__rate_interval]))`, "{{name}}"}}},
		{"Grants that nobody took", "percentunit", "They came after their calls had left, of all grants: Redis is slower than callers wait.", []query{{`sum(rate(perkey_lock_unclaimed_total[$__rate_interval])) / (sum(rate(perkey_lock_unclaimed_total[$__rate_interval])) + sum(rate(perkey_lock_calls_total{outcome="acquired"}[$__rate_interval])))`, ""}}},
		{"Warnings", "short", "Servers and queues that it is warned of now.", []query{{`max by (source, kind) (perkey_warning)`, "{{source}}: {{kind}}"}}},
	}},
	{"Renewals", []panel{
		{"Renewals", "ops", "Renewals of leases that are sent.", []query{{`sum by (instance) (rate(perkey_renewals_total[$__rate_interval]))`, "{{instance}}"}}},
		{"Batches of renewals that failed", "ops", "They are sent again. Leases end if it goes on.", []query{{`sum by (instance) (rate(perkey_renewal_errors_total[$__rate_interval]))`, "{{instance}}"}}},
		{"Round trip of renewals, p99", "s", "How fast Redis answers.", []query{{`histogram_quantile(0.99, sum by (instance, le) (rate(perkey_renewal_seconds_bucket[$__rate_interval])))`, "{{instance}}"}}},
	}},
	{"Requests and tasks", []panel{
		{"Requests by outcome", "ops", "What becomes of requests to guarded routes.", []query{{`sum by (outcome) (rate(perkey_http_requests_total{route=~"$route"}[$__rate_interval]))`, "{{outcome}}"}}},
		{"Requests that did not run", "percentunit", "Requests that were refused their key, shed, too late or not possible, of all of their route. Parked ones run later.", []query{{`sum by (route) (rate(perkey_http_requests_total{route=~"$route", outcome=~"conflict|shed|deadline|unavailable|error"}[$__rate_interval])) / sum by (route) (rate(perkey_http_requests_total{route=~"$route"}[$__rate_interval]))`, "{{route}}"}}},
		{"Idempotency-Key", "ops", "How calls of what remembers requests end.", []query{{`sum by (event) (rate(perkey_idempotency_total[$__rate_interval]))`, "{{event}}"}}},
		{"Tasks by outcome", "ops", "What becomes of asynq's tasks each time that they are handed out.", []query{{`sum by (type, outcome) (rate(perkey_tasks_total[$__rate_interval]))`, "{{type}} {{outcome}}"}}},
	}},
	{"Queues", []panel{
		{"Messages", "short", "Messages that wait, run or are dead letters.", []query{{`max by (queue, state) (perkey_queue_messages{queue=~"$queue"})`, "{{queue}} {{state}}"}}},
		{"Lateness", "s", "How long the first message has been due.", []query{{`max by (queue) (perkey_queue_lateness_seconds{queue=~"$queue"})`, "{{queue}}"}}},
		{"Due", "short", "Messages that could be started now.", []query{{`max by (queue) (perkey_queue_due{queue=~"$queue"})`, "{{queue}}"}}},
		{"Jobs to be stored, by result", "ops", "Calls to store a job, parked or enqueued.", []query{{`sum by (queue, result) (rate(perkey_enqueue_total{queue=~"$queue"}[$__rate_interval]))`, "{{queue}} {{result}}"}}},
		{"Ends of claims", "ops", "How runs of messages end, and which messages were reaped.", []query{{`sum by (queue, event) (rate(perkey_queue_events_total{queue=~"$queue"}[$__rate_interval]))`, "{{queue}} {{event}}"}}},
		{"Ends of messages", "ops", "How messages end, by what Redis has counted.", []query{{`max by (queue, how) (rate(perkey_queue_ended_total{queue=~"$queue"}[$__rate_interval]))`, "{{queue}} {{how}}"}}},
		{"Due before the start, p99", "s", "For how long messages were due when they were started.", []query{{`histogram_quantile(0.99, sum by (queue, le) (rate(perkey_queue_lag_seconds_bucket{queue=~"$queue"}[$__rate_interval])))`, "{{queue}}"}}},
		{"Key wait of workers, p99", "s", "For how long claimed messages waited for their key.", []query{{`histogram_quantile(0.99, sum by (queue, le) (rate(perkey_worker_key_wait_seconds_bucket{queue=~"$queue"}[$__rate_interval])))`, "{{queue}}"}}},
		{"Claims, p99", "s", "Time from claims to their ends.", []query{{`histogram_quantile(0.99, sum by (queue, le) (rate(perkey_worker_claim_seconds_bucket{queue=~"$queue"}[$__rate_interval])))`, "{{queue}}"}}},
		{"Memory", "bytes", "Memory that the queue takes, as WithMaxBytes counts it.", []query{{`max by (queue) (perkey_queue_bytes{queue=~"$queue"})`, "{{queue}}"}}},
		{"Paused, halted, unreachable", "short", "Whether a queue is paused, how many of its keys a dead letter halts, and whether no process can ask it.", []query{
			{`max by (queue) (perkey_queue_paused{queue=~"$queue"})`, "{{queue}} paused"},
			{`max by (queue) (perkey_queue_halted_keys{queue=~"$queue"})`, "{{queue}} halted keys"},
			{`1 - max by (queue) (perkey_queue_up{queue=~"$queue"})`, "{{queue}} unreachable"},
		}},
	}},
	{"All processes, by perkey exporter", []panel{
		{"Processes with a beacon", "short", "Processes that report; silent ones have missed a report, and are dropped soon.", []query{
			{`max by (instance) (perkey_fleet_processes)`, "{{instance}} seen"},
			{`max by (instance) (perkey_fleet_silent)`, "{{instance}} silent"},
			{`1 - max by (instance) (perkey_fleet_up)`, "{{instance}} cannot be read"},
		}},
		{"Versions, and refused configurations", "short", "Versions of perkey that processes have, and processes that refused the latest configuration file.", []query{
			{`max by (instance) (perkey_fleet_versions)`, "{{instance}} versions"},
			{`max by (instance) (perkey_fleet_config_refused)`, "{{instance}} processes with an older file"},
		}},
		{"Leases and waits", "short", "Leases that processes hold, and calls that wait in them.", []query{
			{`max by (instance) (perkey_fleet_held)`, "{{instance}} held"},
			{`max by (instance) (perkey_fleet_waiting)`, "{{instance}} waiting"},
		}},
		{"Workers", "short", "Workers of each queue, how many messages they run at once, and whether work is due and no worker is seen.", []query{
			{`max by (queue) (perkey_fleet_workers{queue=~"$queue"})`, "{{queue}} workers"},
			{`max by (queue) (perkey_fleet_worker_slots{queue=~"$queue"})`, "{{queue}} slots"},
			{`max by (queue) (perkey_fleet_no_worker{queue=~"$queue"})`, "{{queue}} due, and no worker"},
		}},
	}},
	{"Processes", []panel{
		{"Processes by version", "short", "Versions of perkey that run.", []query{{`count by (version) (perkey_build_info)`, "{{version}}"}}},
		{"Processes by configuration file", "short", "Configuration files in force.", []query{{`count by (job, hash) (perkey_config_info)`, "{{job}} {{hash}}"}}},
		{"Reloads", "short", "Configuration files that were taken, unchanged or refused, and processes that refused the latest one.", []query{
			{`sum by (job, result) (increase(perkey_config_reloads_total[$__rate_interval]))`, "{{job}} {{result}}"},
			{`sum by (job) (perkey_config_refused)`, "{{job}}: processes with an older file"},
		}},
	}},
}

// boardJSON is the board as Grafana imports it.
func boardJSON(t *testing.T) []byte {
	t.Helper()
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${source}"}
	var panels []object
	y := 0
	for _, row := range board {
		panels = append(panels, object{"id": len(panels) + 1, "type": "row", "title": row.row, "collapsed": false, "panels": []any{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		for i, p := range row.panels {
			var targets []object
			for j, q := range p.queries {
				targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": q.expr, "legendFormat": q.legend})
			}
			panels = append(panels, object{
				"id": len(panels) + 1, "type": "timeseries", "title": p.title, "description": p.help, "datasource": source, "targets": targets,
				"gridPos":     object{"x": i % 3 * 8, "y": y + i/3*8, "w": 8, "h": 8},
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}},
			})
		}
		y += (len(row.panels) + 2) / 3 * 8
	}
	variable := func(name, metric string) object {
		return object{
			"name": name, "type": "query", "datasource": source, "query": "label_values(" + metric + ", " + name + ")", "refresh": 2,
			"includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
		}
	}
	var text bytes.Buffer
	line := func(before string, v any, after string) {
		one, err := json.Marshal(v)
		require.NoError(t, err)
		text.WriteString(before + string(one) + after + "\n")
	}
	line(`{"templating": `, object{"list": []object{
		{"name": "source", "type": "datasource", "query": "prometheus"},
		variable("name", "perkey_lock_calls_total"), variable("route", "perkey_http_requests_total"), variable("queue", "perkey_queue_up"),
	}}, ",")
	line(`"time": `, object{"from": "now-1h", "to": "now"}, `, "title": "perkey", "uid": "perkey", "schemaVersion": 39, "tags": ["perkey"], "refresh": "30s", "panels": [`)
	for i, p := range panels {
		line("  ", p, map[bool]string{true: ","}[i < len(panels)-1])
	}
	text.WriteString("]}\n")
	require.True(t, json.Valid(text.Bytes()))
	return text.Bytes()
}

func TestBoard_IsGenerated(t *testing.T) {
	text := boardJSON(t)
	if *update {
		require.NoError(t, os.WriteFile(boardFile, text, 0o644))
	}
	written, err := os.ReadFile(boardFile)
	require.NoError(t, err)
	require.Equal(t, string(text), string(written), "go test -run Board -update writes it")
}
