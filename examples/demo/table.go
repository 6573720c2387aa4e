package main

import (
	"fmt"
	"slices"
)

// column is one of the table's.
type column struct {
	head  string
	width int // with the space before it; negative: to the left
	style style
	cell  func(route string, r row) string
}

// table is for windows of at least so many columns.
type table struct {
	least   int
	columns []column
}

var tables = []table{
	{111, []column{
		name,
		{"  if the key is held it", -26, plain, func(route string, _ row) string { return "  " + policies[route] }},
		requests, ran, refused, waited, median,
		{"p99", 8, blue, percentile(99)},
		parked, replayed,
	}},
	{76, []column{name, requests, ran, refused, waited, median, parked, replayed}},
	{0, []column{
		{"route", -5, plain, func(route string, _ row) string { return short(route) }},
		{"sent", 6, plain, requests.cell},
		{"ran", 6, green, ran.cell},
		refused, waited, parked,
	}},
}

var (
	name     = column{"route", -21, plain, func(route string, _ row) string { return route }}
	requests = column{"requests", 9, plain, number(func(r row) int { return r.requests })}
	ran      = column{"ran", 7, green, number(func(r row) int { return r.ran })}
	refused  = column{"refused", 8, yellow, number(func(r row) int { return r.refused })}
	waited   = column{"waited", 7, blue, number(func(r row) int { return r.waited })}
	median   = column{"median", 8, blue, percentile(50)}
	parked   = column{"parked", 7, pink, number(func(r row) int { return r.parked })}
	replayed = column{"replayed", 9, pink, number(func(r row) int { return r.replayed })}
)

// policies says what becomes of a request whose key is held.
var policies = map[string]string{routePay: "is refused", routeCart: "waits", routeShip: "is parked, runs later"}

func number(of func(row) int) func(string, row) string {
	return func(_ string, r row) string {
		if n := of(r); n > 0 {
			return fmt.Sprint(n)
		}
		return "-"
	}
}

// percentile is of what those waited who waited at all.
func percentile(p int) func(string, row) string {
	return func(_ string, r row) string {
		if len(r.waits) == 0 {
			return "-"
		}
		return milliseconds(r.waits[(len(r.waits)-1)*p/100])
	}
}

func (v *view) table(columns int) []line {
	at := slices.IndexFunc(tables, func(t table) bool { return t.least <= max(columns, 0) })
	lines := make([]line, 1+len(routes))
	for _, c := range tables[at].columns {
		lines[0] = append(lines[0], span{bold, fmt.Sprintf("%*s", c.width, c.head)})
		for i, route := range routes {
			lines[1+i] = append(lines[1+i], span{c.style, fmt.Sprintf("%*s", c.width, c.cell(route, v.rows[i]))})
		}
	}
	return lines
}
