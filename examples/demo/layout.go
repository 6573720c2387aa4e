package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/examples/internal/terminal"
)

// route is a row of the board, and what is said of it: what becomes of a request whose key is held, and how to see that.
type route struct {
	name, short, held string
	style             terminal.Style
	try, twice        string
}

var routes = []route{
	{routePay, "pay", "is refused", terminal.Yellow, "POST '%s/orders/7/pay?work=5s' &", "409"},
	{routeCart, "cart", "waits", terminal.Blue, "PUT '%s/carts/7?work=1s' &", "waits"},
	{routeShip, "ship", "is parked, runs later", terminal.Pink, "POST '%s/orders/7/ship?work=5s' &", "202"},
}

const sideBySide = 75 // columns that the three lists need for that

// layout is the screen, of at most so many rows. Where there is no room for all of it, what matters most stays.
func (v *view) layout(columns, rows int) []string {
	left := rows
	fits := func(lines []string) []string {
		if len(lines) > left {
			return nil
		}
		left -= len(lines)
		return lines
	}
	least, most := 4, 13
	if columns < sideBySide {
		least, most = 6, 18
	}
	table, title := fits(v.table(columns)), fits([]string{v.title(columns)})
	promise, address := fits(v.promise(columns)), fits(v.address(columns))
	lists, events, curls := fits(make([]string, least)), fits(v.events(columns)), fits(v.curls(columns))

	for _, part := range []*[]string{&table, &lists, &events, &promise} {
		if len(*part) > 0 && left > 0 { // an empty line before it
			*part = slices.Insert(*part, 0, "")
			left--
		}
	}
	if n := len(lists) - least; n >= 0 {
		lists = append(lists[:n], v.lists(columns, min(least+left, most))...)
	}
	return slices.Concat(title, table, lists, events, promise, address, curls)
}

func (v *view) title(columns int) string {
	right := fmt.Sprintf("  %s Redis  %s", v.redis, time.Since(v.start).Round(time.Second))
	return terminal.Fit(columns, terminal.Pad(terminal.Bold.Of("perkey")+" one request at a time per key", columns-len(right)), right)
}

const always = math.MaxInt

// table has some columns only in windows of from to below columns. A negative width: to the left.
var table = []struct {
	head        string
	width       int
	style       terminal.Style
	from, below int
	cell        func(row) string
}{
	{"route", -5, terminal.Plain, 0, 76, func(r row) string { return r.short }},
	{"route", -21, terminal.Plain, 76, always, func(r row) string { return r.name }},
	{"  if the key is held it", -26, terminal.Plain, 111, always, func(r row) string { return "  " + r.held }},
	{"sent", 6, terminal.Plain, 0, 76, number(requests)},
	{"requests", 9, terminal.Plain, 76, always, number(requests)},
	{"ran", 6, terminal.Green, 0, 76, number(ran)},
	{"ran", 7, terminal.Green, 76, always, number(ran)},
	{"refused", 8, terminal.Yellow, 0, always, number(refused)},
	{"waited", 7, terminal.Blue, 0, always, number(waited)},
	{"median", 8, terminal.Blue, 76, always, percentile(50)},
	{"p99", 8, terminal.Blue, 111, always, percentile(99)},
	{"parked", 7, terminal.Pink, 0, always, number(parked)},
	{"replayed", 9, terminal.Pink, 76, always, number(replayed)},
}

func number(t tally) func(row) string {
	return func(r row) string { return cmp.Or(strings.TrimPrefix(fmt.Sprint(r.n[t]), "0"), "-") }
}

// percentile is of what those waited who waited at all.
func percentile(p int) func(row) string {
	return func(r row) string {
		if len(r.waits) == 0 {
			return "-"
		}
		return short(r.waits[(len(r.waits)-1)*p/100])
	}
}

// short is a duration in seven characters.
func short(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

func (v *view) table(columns int) []string {
	lines := make([]string, 1+len(v.rows))
	for _, c := range table {
		if c.from <= columns && columns < c.below {
			lines[0] += terminal.Bold.Of(fmt.Sprintf("%*s", c.width, c.head))
			for i, r := range v.rows {
				lines[1+i] += c.style.Of(fmt.Sprintf("%*s", c.width, c.cell(r)))
			}
		}
	}
	return lines
}

// lists are who is inside, the oldest first, who waits, and what is parked, in so many rows.
func (v *view) lists(columns, rows int) []string {
	inside := slices.SortedFunc(maps.Keys(v.inside), func(x, y string) int {
		return cmp.Or(v.inside[x].since.Compare(v.inside[y].since), cmp.Compare(x, y))
	})
	lists := []struct {
		head  string
		style terminal.Style
		keys  []string
		text  func(key string) string
	}{
		{"inside now", terminal.Green, inside, func(key string) string {
			at := v.inside[key]
			return fmt.Sprintf("%-4s %7s", v.row(at.route).short, short(time.Since(at.since)))
		}},
		{"waiting", terminal.Blue, known(v.waiting), func(key string) string { return plural(v.waiting[key], "call") }},
		{"parked", terminal.Pink, known(v.parked), func(key string) string { return plural(v.parked[key], "request") }},
	}
	lines, each := make([]string, rows), rows/len(lists)
	for i, list := range lists {
		part, from, wide := lines[i*each:(i+1)*each], 0, columns // below one another
		if columns >= sideBySide {
			wide = min(columns, 120) / len(lists)
			part, from = lines, i*wide
		}
		part[0] = terminal.Pad(part[0], from) + terminal.Bold.Of(fmt.Sprintf("%s: %d", list.head, len(list.keys)))
		for y, key := range list.keys[:min(len(list.keys), len(part)-1)] {
			text, key := list.text(key), terminal.Printable(key)
			if most := wide - len(text) - 2; len(key) > most && most > 2 {
				key = key[:most-2] + ".."
			}
			part[1+y] = terminal.Pad(part[1+y], from) + list.style.Of(fmt.Sprintf("%-11s", key)) + " " + text
		}
	}
	return lines
}

// known are the keys of which there is something.
func known(all map[string]int) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(key string) bool { return all[key] < 1 })
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// events are what happened last on each route.
func (v *view) events(columns int) (lines []string) {
	for _, r := range v.rows {
		lines = append(lines, terminal.Fit(columns, r.style.Of(terminal.Printable(r.event.text)), r.event.more))
	}
	return lines
}

// promise is what was promised, and how often it was seen to be kept.
func (v *view) promise(columns int) []string {
	style := map[bool]terminal.Style{true: terminal.Green, false: terminal.Red}[v.violations == 0]
	lines := []string{terminal.Fit(columns, style.Of(fmt.Sprintf("violations: %d", v.violations)), fmt.Sprintf(" in %d runs", v.entered),
		"   promised: one at a time per key, parked in order")}
	if n := v.total()[failed]; n > 0 || v.lost > 0 {
		lines = append(lines, terminal.Red.Of(terminal.Printable(fmt.Sprintf("failed: %d, lost: %d: %v", n, v.lost, v.failure))))
	}
	return lines
}

// address is where the console is.
func (v *view) address(columns int) []string {
	lines := []string{terminal.Fit(columns, "console "+terminal.Bold.Of(v.place.url+"/ops/"), "   Ctrl-C ends")}
	if !v.place.local {
		lines = append(lines, terminal.Yellow.Of("the console is read-only: others reach it too"))
	}
	return lines
}

// curls are what to try, each whole or not at all.
func (v *view) curls(columns int) (lines []string) {
	for _, r := range routes {
		if curl := "curl -X " + fmt.Sprintf(r.try, v.place.url); len(curl) <= columns {
			lines = append(lines, terminal.Fit(columns, curl, "  # twice: "+r.twice))
		}
	}
	return lines
}

// introduction is what stands before the lines of an output that is not a terminal.
func (v *view) introduction(once bool) string {
	lines := append([]string{v.title(79), ""}, v.address(79)...)
	if !once {
		lines = append(lines, v.curls(79)...)
	}
	return terminal.Text(lines, 79)
}

// sentence is the board in a line.
func (v *view) sentence() string {
	n := v.total()
	return fmt.Sprintf("%4.0f s  %d requests: %d ran, %d refused, %d parked, %d replayed; violations: %d",
		time.Since(v.start).Seconds(), n[requests], n[ran], n[refused], n[parked], n[replayed], v.violations)
}

// summary is what stays when the demo has ended.
func (v *view) summary(columns int) string {
	lines := append(append(v.table(columns-1), ""), v.promise(columns-1)...)
	return terminal.Text(lines, columns-1) + fmt.Sprintf("%.1f s on %s Redis\n", time.Since(v.start).Seconds(), v.redis)
}

// lastLine is that of -once.
func (v *view) lastLine() string {
	n := v.total()
	return fmt.Sprintf("demo: requests=%d ran=%d rejected=%d waited=%d parked=%d replayed=%d max_inside=%d violations=%d redis=%s",
		n[requests], n[ran], n[refused], n[waited], n[parked], n[replayed], v.maxInside, v.violations, v.redis)
}
