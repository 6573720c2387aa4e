package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// formKind is one of the ways to send a form.
type formKind struct{ multipart, chunked bool }

func formKinds() []formKind {
	return []formKind{{}, {chunked: true}, {multipart: true}, {multipart: true, chunked: true}}
}

func (k formKind) String() string {
	return fmt.Sprintf("multipart: %t, chunked: %t", k.multipart, k.chunked)
}

// form is a request that pays an amount, with a note of one character that is escaped.
func (t *fixture) form(s *site, k formKind, amount string) *http.Request {
	t.Helper()
	r := t.request(s, http.MethodPost, testbed.OrderPath, "")
	content, contentType := "note=%2B&amount="+url.QueryEscape(amount), "application/x-www-form-urlencoded"
	if k.multipart {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		require.NoError(t, w.WriteField("note", "+"))
		part, err := w.CreateFormFile("amount", "amount.txt")
		require.NoError(t, err)
		_, err = io.WriteString(part, amount)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		content, contentType = b.String(), w.FormDataContentType()
	}
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(content)), int64(len(content))
	if k.chunked {
		r.ContentLength = -1
	}
	r.Header.Set("Content-Type", contentType)
	return r
}

// pays answers what it finds in the form.
func pays(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseMultipartForm(1 << 20); err != nil && r.MultipartForm != nil {
		return err
	}
	amount := r.PostFormValue("amount")
	if file, _, err := r.FormFile("amount"); err == nil {
		content, err := io.ReadAll(file)
		if err != nil {
			return err
		}
		amount = string(content)
	}
	_, err := fmt.Fprintf(w, "paid %s, %s", amount, r.PostFormValue("note"))
	return err
}

const passesBy = "X-Passes-By"

// readsForms is middleware that looks for a field, as one for _method does.
func readsForms(c Context) error {
	if r := c.Request(); r.Header.Get(passesBy) == "" {
		r.FormValue("_method")
	}
	return c.Next()
}

// drains is middleware that reads bodies, as a logger does that does not put them back.
func drains(c Context) error {
	_, err := io.Copy(io.Discard, c.Request().Body)
	if err != nil {
		return err
	}
	return c.Next()
}

// caps is middleware that bounds bodies, and leaves them to others.
func caps(c Context) error {
	r := c.Request()
	r.Body = http.MaxBytesReader(c.Writer(), r.Body, 1<<20)
	return c.Next()
}

// decodes is middleware that reads a value of JSON, but not the end of the body, and tells when it has.
func decodes(read chan<- struct{}) Middleware {
	return func(c Context) error {
		var value any
		err := json.NewDecoder(c.Request().Body).Decode(&value)
		read <- struct{}{}
		if err != nil {
			return err
		}
		return c.Next()
	}
}

// inPieces is a request whose client sends a value of JSON, and the rest once that was read.
func (t *fixture) inPieces(s *site, read <-chan struct{}, rest string, announced bool) *http.Request {
	t.Helper()
	const first = `{"amount":5}`
	r := t.request(s, http.MethodPost, testbed.OrderPath, "")
	body, sent := io.Pipe()
	if r.Body, r.ContentLength = body, -1; announced {
		r.ContentLength = int64(len(first + rest))
	}
	go func() {
		_, err := io.WriteString(sent, first)
		if err == nil {
			select {
			case <-read:
				_, err = io.WriteString(sent, rest)
			case <-t.Context().Done():
			}
		}
		_ = sent.CloseWithError(err) // always nil
	}()
	return r
}

// sent sends r, which answers with a status.
func (t *fixture) sent(s *site, r *http.Request, status int, what any) testbed.Answer {
	t.Helper()
	resp := t.do(s, r)
	require.Equal(t, status, resp.Status, "%v: %s", what, resp.Body)
	return resp
}

// requireResult wants a parked request's result.
func (t *fixture) requireResult(d *parkingSite, location, body string, what any) {
	t.Helper()
	t.ended(d, location, delayqueue.StateDone)
	require.Equal(t, body, t.send(d.site, http.MethodGet, location+"/result", "").Body, what)
}

// formsParked: what was parked is run with the form that was sent, or not parked.
func formsParked(t *fixture) {
	d := t.openParkingBehind([]Step{Middleware(readsForms)}, pays, parks)
	for _, k := range formKinds() {
		t.sent(d.site, t.form(d.site, k, "5"), http.StatusOK, k) // while the key is free
	}
	release := d.Hold(t)
	location := testbed.RequireParked(t, t.sent(d.site, t.form(d.site, formKind{}, "5 + 7"), http.StatusAccepted, "a form that can be made again"))
	for what, r := range map[string]*http.Request{
		"chunked":            t.form(d.site, formKind{chunked: true}, "5"),
		"multipart":          t.form(d.site, formKind{multipart: true}, "5"),
		"multipart, chunked": t.form(d.site, formKind{true, true}, "5"),
		"malformed":          t.formOf(d.site, "amount=5&%zz"),
		"in longer words":    t.formOf(d.site, "%61mount=5"),
	} {
		testbed.RequireProblem(t, t.sent(d.site, r, http.StatusConflict, what), http.StatusConflict, "conflict", true)
	}
	require.Contains(t, t.said.String(), "a request was not parked")
	require.Contains(t, t.said.String(), "read in front of the guard")
	t.work(d)
	release()
	t.requireResult(d, location, "paid 5 + 7, +", "made again")
	d.RequireFree(t)
}

// formOf is a form in these words.
func (t *fixture) formOf(s *site, content string) *http.Request {
	t.Helper()
	r := t.form(s, formKind{}, "")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(content)), int64(len(content))
	return r
}

// drainedNotParked: nothing is left of a body that was sent.
func drainedNotParked(t *fixture) {
	d := t.openParkingBehind([]Step{Middleware(drains)}, pays, parks)
	release := d.Hold(t)
	defer release()
	for _, k := range formKinds() {
		t.sent(d.site, t.form(d.site, k, "5"), http.StatusConflict, k)
	}
	testbed.RequireProblem(t, t.post(d.site, "{}"), http.StatusConflict, "conflict", true)
	require.Equal(t, http.StatusAccepted, t.post(d.site, "").Status, "nothing was sent")
}

// begun calls f with each way to read the beginning of a body in front of the guard. send sends one of which the rest is another
// value, or nothing.
func (t *fixture) begun(f func(front []Step, send func(s *site, status int, kind string, retry bool))) {
	t.Helper()
	read := make(chan struct{}, 1)
	for _, front := range [][]Step{{decodes(read)}, {Middleware(caps), decodes(read)}} {
		f(front, func(s *site, status int, kind string, retry bool) {
			for _, body := range []struct {
				rest      string
				announced bool
			}{{"", false}, {`{"amount":7}`, false}, {`{"amount":7}`, true}} {
				r := t.inPieces(s, read, body.rest, body.announced)
				r.Header.Set("Idempotency-Key", "k")
				testbed.RequireProblem(t, t.sent(s, r, status, fmt.Sprint(len(front), body)), status, kind, retry)
			}
		})
	}
	require.Contains(t, t.said.String(), "read in front of the guard")
}

// begunNotParked: some of a body was read, and not its end.
func begunNotParked(t *fixture) {
	t.begun(func(front []Step, send func(*site, int, string, bool)) {
		d := t.openParkingBehind(front, t.mustNotRun, parks)
		defer d.Hold(t)()
		send(d.site, http.StatusConflict, "conflict", true)
	})
}

// begunNotCompared: of such a body there is no payload.
func begunNotCompared(t *fixture) {
	t.begun(func(front []Step, send func(*site, int, string, bool)) {
		b := t.setUp()
		send(t.serve(orders(t.mustNotRun, append(front, t.remembering(b, nil))...)), http.StatusInternalServerError, "misconfigured", false)
		b.RequireFree(t)
	})
}

// cappedParked: what is only capped in front is parked whole, an empty body too.
func cappedParked(t *fixture) {
	d := t.openParkingBehind([]Step{Middleware(caps)}, func(w http.ResponseWriter, r *http.Request) error {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s %q", r.Header.Get("Content-Encoding"), content)
		return err
	}, parks)
	release := d.Hold(t)
	locations := map[string]string{}
	for _, content := range []string{"", "br"} {
		r := t.request(d.site, http.MethodPost, testbed.OrderPath, "")
		r.Header.Set("Content-Encoding", "br")
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(content)), -1
		locations[content] = testbed.RequireParked(t, t.sent(d.site, r, http.StatusAccepted, content))
	}
	t.work(d)
	release()
	for content, location := range locations {
		t.requireResult(d, location, fmt.Sprintf("br %q", content), content)
	}
}

// formsCompared: the payload is that of the form, whoever has read it.
func formsCompared(t *fixture) {
	b := t.setUp()
	handler, runs := counted(pays)
	s := t.serve(orders(handler, Middleware(readsForms), t.remembering(b, nil)))
	for i, k := range formKinds() {
		send := func(amount string, passes bool, status int) testbed.Answer {
			r := t.form(s, k, amount)
			r.Header.Set("Idempotency-Key", fmt.Sprintf("%q", k.String()))
			if passes {
				r.Header.Set(passesBy, "yes")
			}
			return t.sent(s, r, status, k)
		}
		first := send("5", false, http.StatusOK)
		require.Equal(t, "paid 5, +", first.Body, k)
		for _, passes := range []bool{false, true} {
			testbed.RequireProblem(t, send("7", passes, http.StatusUnprocessableEntity), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
			requireStored(t, first, send("5", passes, http.StatusOK))
		}
		require.EqualValues(t, i+1, runs.Load(), k)
	}
	b.RequireFree(t)
}

// drainedNotCompared: where nothing is left to compare no response is given that may be another one's.
func drainedNotCompared(t *fixture) {
	b := t.setUp()
	s := t.serve(orders(t.mustNotRun, Middleware(drains), t.remembering(b, nil)))
	for _, k := range formKinds() {
		r := t.form(s, k, "5")
		r.Header.Set("Idempotency-Key", "k")
		testbed.RequireProblem(t, t.sent(s, r, http.StatusInternalServerError, k), http.StatusInternalServerError, "misconfigured", false)
	}
	testbed.RequireProblem(t, t.keyed(s, "k", "{}"), http.StatusInternalServerError, "misconfigured", false)
	require.Contains(t, t.said.String(), "read in front of the guard")
	b.RequireFree(t)
}

// formsParkedOnce: the payload of a replay is that of the request that was parked.
func formsParkedOnce(t *fixture) {
	handler, runs := counted(pays)
	d := t.openParkingBehind([]Step{Middleware(readsForms)}, handler, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return t.remembering(b, delayqueue.Policy(q)), nil
	})
	release := d.Hold(t)
	send := func(k formKind, amount string, status int) testbed.Answer {
		r := t.form(d.site, k, amount)
		r.Header.Set("Idempotency-Key", fmt.Sprintf("%q", k.String()))
		if k != (formKind{}) { // else it cannot be parked
			r.Header.Set(passesBy, "yes")
		}
		return t.sent(d.site, r, status, k)
	}
	locations := map[formKind]string{}
	for _, k := range formKinds() {
		locations[k] = testbed.RequireParked(t, send(k, "5", http.StatusAccepted))
		send(k, "7", http.StatusUnprocessableEntity)
	}
	t.work(d)
	release()
	for _, k := range formKinds() {
		t.requireResult(d, locations[k], "paid 5, +", k)
		require.Equal(t, "paid 5, +", send(k, "5", http.StatusOK).Body, k)
		send(k, "7", http.StatusUnprocessableEntity)
	}
	require.EqualValues(t, len(locations), runs.Load())
}

// formReaders are ways in which a service's functions read a request's body.
var formReaders = map[string]func(*http.Request) error{
	"FormValue": func(r *http.Request) error {
		r.FormValue("amount")
		return nil
	},
	"ParseForm": (*http.Request).ParseForm,
	"io.ReadAll": func(r *http.Request) error {
		_, err := io.ReadAll(r.Body)
		return err
	},
	"a byte": func(r *http.Request) error {
		_, err := r.Body.Read(make([]byte, 1))
		return err
	},
}

// formFunctions have one of the functions that get a request read its body.
var formFunctions = map[string]func(t *fixture, l *Lock, read func(*http.Request) error){
	"the key function": func(_ *fixture, l *Lock, read func(*http.Request) error) {
		key := l.Key
		l.Options = append(l.Options, httplock.WithAnonymous())
		l.Key = func(r *http.Request) (string, error) {
			if err := read(r); err != nil {
				return "", err
			}
			return key(r)
		}
	},
	"WithPrincipal": func(_ *fixture, l *Lock, read func(*http.Request) error) {
		l.Options = append(l.Options, httplock.WithPrincipal(func(r *http.Request) (string, error) { return "bob", read(r) }),
			httplock.WithReauthorize(func(*http.Request, string) error { return nil }))
	},
	"WithSkip": func(t *fixture, l *Lock, read func(*http.Request) error) {
		l.Options = append(l.Options, httplock.WithAnonymous(), httplock.WithSkip(func(r *http.Request) bool {
			assert.NoError(t, read(r))
			return false
		}))
	},
	"WithReauthorize": func(_ *fixture, l *Lock, read func(*http.Request) error) {
		l.Options = append(l.Options, httplock.WithPrincipal(func(*http.Request) (string, error) { return "bob", nil }),
			httplock.WithReauthorize(func(r *http.Request, _ string) error { return read(r) }))
	},
}

// functionsReadForms: what a function of the service reads is there again, for the others, for the handler and for a
// replay's.
func functionsReadForms(t *fixture) {
	for function, configure := range formFunctions {
		d := t.openParking(pays, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
			l := lock(b, delayqueue.Policy(q))
			configure(t, &l, func(r *http.Request) error { return formReaders[r.URL.Query().Get("how")](r) })
			return l, nil
		})
		send := func(how string, k formKind, amount string, status int) testbed.Answer {
			r := t.form(d.site, k, amount)
			r.URL.RawQuery = url.Values{"how": {how}}.Encode()
			return t.sent(d.site, r, status, function+", "+how)
		}
		locations := map[string]string{}
		for how := range formReaders {
			for _, k := range formKinds() {
				require.Equal(t, "paid 5, +", send(how, k, "5", http.StatusOK).Body, "%s, %s: %v", function, how, k)
			}
		}
		release := d.Hold(t)
		for how := range formReaders {
			for _, k := range formKinds() {
				locations[testbed.RequireParked(t, send(how, k, "7", http.StatusAccepted))] = fmt.Sprintf("%s, %s: %v, replayed", function, how, k)
			}
		}
		stop := t.work(d, httplock.WithReplayReauthorize(func(r *http.Request, _ string) error { return formReaders[r.URL.Query().Get("how")](r) }))
		release()
		for location, what := range locations {
			t.requireResult(d, location, "paid 7, +", what)
		}
		stop()
	}
}

// skippedForms: so it is for a request that passes without the key.
func skippedForms(t *fixture) {
	b := t.setUp()
	for how, read := range formReaders {
		s := t.serve(orders(pays, lock(b, nil, httplock.WithSkip(func(r *http.Request) bool {
			assert.NoError(t, read(r))
			return true
		}))))
		for _, k := range formKinds() {
			require.Equal(t, "paid 5, +", t.sent(s, t.form(s, k, "5"), http.StatusOK, k).Body, "%s: %v", how, k)
		}
	}
}
