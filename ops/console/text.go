package console

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perkey-go/perkey/ops"
)

// functions are what templates call.
var functions = template.FuncMap{
	"parts": parts, "link": link, "num": num, "size": size, "dur": dur, "exact": exact, "rate": rate,
	"clock": clock, "stamp": stamp, "iso": iso, "since": time.Since, "until": time.Until, "short": short, "runbook": runbook, "findinglink": findingLink, "evidence": evidence, "server": serverOf,
	"safe": safe, "valid": utf8.ValidString, "seconds": seconds, "inc": func(i int) int { return i + 1 },
	"count": func(n int, one, many string) string { return count(int64(n), one, many) },
	"int64": func(n int) int64 { return int64(n) }, "string": func(b []byte) string { return string(b) },
	"tab": newTab, "pair": newPair, "entries": newEntries, "holder": newHolder, "ref": func(p processView) *processView { return &p },
	"label": label, "bad": bad, "badwarning": badWarning, "silent": silent, "calls": calls, "losses": losses, "leases": leasesOf, "waits": waitsOf, "events": eventsOf,
}

// keyFunctions are those that name keys.
func keyFunctions(n *keyNames) template.FuncMap {
	return template.FuncMap{
		"keyurl": n.url, "keyname": n.name, "keyparam": n.param, "unlock": n.unlockURL, "hide": n.hide, "hashed": func() bool { return n != nil },
	}
}

// part is a piece of a text that somebody else wrote. One that is not Plain is shown as its escape.
type part struct {
	Text  string
	Plain bool
}

// parts splits a text into what can be shown as it is, and escapes of what cannot: bytes that are no UTF-8, and what is
// not printable, such as marks that turn the direction of writing.
func parts(text string) (all []part) {
	var run strings.Builder
	plain := true
	end := func() {
		if run.Len() > 0 {
			all = append(all, part{run.String(), plain})
			run.Reset()
		}
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		shown, as := text[i:i+n], true
		switch {
		case r == utf8.RuneError && n == 1:
			shown, as = fmt.Sprintf(`\x%02x`, text[i]), false
		case r != '\n' && !strconv.IsPrint(r):
			shown, as = strings.Trim(strconv.QuoteRune(r), "'"), false
		}
		if as != plain {
			end()
			plain = as
		}
		run.WriteString(shown)
		i += n
	}
	end()
	return all
}

// label is what a button says.
func label(do ops.Action) string { return strings.ToUpper(string(do[:1])) + string(do[1:]) }

// link is a page, relative to any page, with names and values of its query.
func link(page string, query ...string) string {
	for i := 0; i+1 < len(query); i += 2 {
		sep := "&"
		if i == 0 {
			sep = "?"
		}
		page += sep + query[i] + "=" + url.QueryEscape(query[i+1])
	}
	return page
}

// num writes a whole number.
func num(n any) string {
	digits := fmt.Sprint(n)
	if len(digits) < 5 {
		return digits
	}
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// rate writes a number of which three digits matter.
func rate(f float64) string {
	switch {
	case f == math.Trunc(f):
		return num(int64(f))
	case f < 0.1:
		return "<0.1"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return num(int64(math.Round(f)))
}

// count writes a number of things.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return num(n) + " " + many
}

func size(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if f < 1024 {
			if unit == "B" || f >= 100 {
				return fmt.Sprintf("%.0f %s", f, unit)
			}
			return fmt.Sprintf("%.1f %s", f, unit)
		}
		f /= 1024
	}
	return fmt.Sprintf("%.1f TiB", f)
}

// dur writes a time as a person says it; exact has the rest.
func dur(d time.Duration) string {
	switch d = max(d, 0); {
	case d > 0 && d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %02d h", int(d.Hours())/24, int(d.Hours())%24)
}

func exact(d time.Duration) string {
	if d > time.Millisecond {
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// seconds writes a number of seconds.
func seconds(f float64) string { return dur(time.Duration(f * float64(time.Second))) }

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// safe is a text as parts show it, in one.
func safe(text string) string {
	var b strings.Builder
	for _, p := range parts(text) {
		b.WriteString(p.Text)
	}
	return b.String()
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// short cuts a text off.
func short(n int, text string) string {
	text, _, _ = strings.Cut(text, "\n")
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	for i := range text {
		if n--; n <= 0 {
			return text[:i] + "…"
		}
	}
	return text
}

// runbook is where the project has the section of its runbook that a finding names.
func runbook(section string) string {
	return "https://github.com/perkey-go/perkey/blob/main/" + section
}
