package locktest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// IntAliases returns spellings of one whole number in a path: 42, 042, +42, 0042, %34%32, and with
// spaces around it. The first is the usual one.
func IntAliases(id int) []string {
	sign, digits := "", strconv.Itoa(id)
	if id < 0 {
		sign, digits = "-", digits[1:]
	}
	aliases := []string{sign + digits, sign + "0" + digits, sign + "00" + digits, escaped(sign + digits), sign + digits + "%20", "%20" + sign + digits}
	if id >= 0 {
		aliases = append(aliases, "+"+digits, "%2B"+digits)
	}
	return aliases
}

// UUIDAliases returns spellings of one UUID in a path: in lower and upper case, without hyphens, in braces,
// behind urn:uuid:, percent-encoded, and with a space behind it. id has hyphens; the first alias is in
// lower case.
func UUIDAliases(id string) []string {
	lower, upper := strings.ToLower(id), strings.ToUpper(id)
	return []string{
		lower, upper, strings.ReplaceAll(lower, "-", ""), strings.ReplaceAll(upper, "-", ""), "%7B" + lower + "%7D", "urn:uuid:" + lower, "URN:UUID:" + upper,
		escaped(lower), lower + "%20",
	}
}

// escaped is s with each byte percent-encoded.
func escaped(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

// settling is how long requests that are not answered have to reach the handler that they must not reach.
var settling = 250 * time.Millisecond

// RequireOneAtATime fails the test if two requests for one thing run at once because they
// spell its id differently. route builds the service's route around work, which stands
// for what must not run twice at a time: a handler of its own, or what the real handler
// calls when it knows the id. request makes the request for an alias of the id;
// [IntAliases] and [UUIDAliases] return some.
//
// The first alias must reach work, and keeps its key. Then all others are sent at once. A request
// that is refused, for its key or as an invalid id, or that waits is right; one that reaches work
// fails the test. Then those that wait run, one at a time. Any policy will do; a guard for several
// at a time fails the test.
func RequireOneAtATime(t TB, route func(work http.Handler) http.Handler, request func(alias string) *http.Request, aliases ...string) {
	t.Helper()
	if len(aliases) < 2 {
		t.Fatalf("locktest: RequireOneAtATime: want two aliases at least, got %q", aliases)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &work{first: make(chan struct{}), leave: make(chan struct{})}
	leave := sync.OnceFunc(func() { close(w.leave) })
	defer leave()
	service := route(w)
	var sent sync.WaitGroup
	send := func(alias string) <-chan int {
		r := request(alias)
		answered := make(chan int, 1)
		sent.Go(func() {
			requestCtx, end := context.WithCancel(context.WithValue(r.Context(), aliasKey{}, alias))
			defer end()
			defer context.AfterFunc(ctx, end)()
			recorder := httptest.NewRecorder()
			service.ServeHTTP(recorder, r.WithContext(requestCtx))
			answered <- recorder.Code
		})
		return answered
	}

	first := send(aliases[0])
	select {
	case <-w.first:
	case status := <-first:
		t.Fatalf("locktest: the request for %s did not run: it was answered with %d", aliases[0], status)
	case <-time.After(waitTimeout):
		t.Fatalf("locktest: the request for %s did not run within %s", aliases[0], waitTimeout)
	}
	var others []<-chan int
	for _, alias := range aliases[1:] {
		others = append(others, send(alias))
	}
	settled := time.After(settling)
	for _, answered := range others {
		select {
		case <-answered:
		case <-settled:
			settled = closed // for all that are left
		}
	}
	leave()
	done := make(chan struct{})
	go func() { sent.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(waitTimeout):
		cancel()
		<-done
	}
	if together := w.overlaps(); len(together) > 0 {
		t.Fatalf("locktest: requests for one thing ran at once: %s; its key must be the same however it is written: httplock.ParamInt, ParamUUID, Canonical",
			strings.Join(together, ", "))
	}
}

// closed is a time that has come.
var closed = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// aliasKey is where a request's ctx has its alias.
type aliasKey struct{}

// work is the handler that must not run twice at a time.
type work struct {
	first, leave chan struct{}

	mu       sync.Mutex
	begun    bool
	inside   []string
	together []string // which reached it beside another
}

func (w *work) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	alias, _ := r.Context().Value(aliasKey{}).(string)
	w.mu.Lock()
	if len(w.inside) > 0 {
		w.together = append(w.together, alias+" beside "+w.inside[0])
	}
	w.inside = append(w.inside, alias)
	first := !w.begun
	w.begun = true
	w.mu.Unlock()
	if first {
		close(w.first)
		<-w.leave
	}
	time.Sleep(time.Millisecond) // for another to come
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside = slices.DeleteFunc(w.inside, func(other string) bool { return other == alias })
}

func (w *work) overlaps() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.together)
}
