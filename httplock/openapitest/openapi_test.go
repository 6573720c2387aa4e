package openapitest

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi/datamodel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const docs = "../../docs"

// document is an OpenAPI document that may refer to docs/openapi.yaml.
func document(t *testing.T, text []byte) (libopenapi.Document, validator.Validator) {
	t.Helper()
	doc, err := libopenapi.NewDocumentWithConfiguration(text, &datamodel.DocumentConfiguration{BasePath: docs, FileFilter: []string{"openapi.yaml"}, AllowFileReferences: true})
	require.NoError(t, err)
	v, errs := validator.NewValidator(doc)
	require.Empty(t, errs)
	return doc, v
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// docs/openapi.yaml is valid, and so are documents that refer to it, as the one in docs/clients.md does.
func TestOpenAPI_IsValid(t *testing.T) {
	snippet := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(read(t, docs+"/clients.md"))
	require.NotNil(t, snippet)
	for _, text := range [][]byte{
		read(t, docs+"/openapi.yaml"), read(t, "testdata/service.yaml"),
		append([]byte("openapi: 3.1.0\ninfo: {title: t, version: \"1\"}\n"), snippet[1]...),
	} {
		_, v := document(t, text)
		ok, errs := v.ValidateDocument()
		require.True(t, ok, "%s: %v", text, errs)
	}
}

// Each problem of docs/problems.md is in the response of its status, and no other.
func TestOpenAPI_HasEachProblem(t *testing.T) {
	want := map[string][]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| \[([a-z-]+)\]\(#[a-z-]+\) \| (\d+) \|`).FindAllStringSubmatch(string(read(t, docs+"/problems.md")), -1) {
		want[row[2]] = append(want[row[2]], "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"+row[1])
	}
	require.Greater(t, len(want), 10)

	doc, _ := document(t, read(t, docs+"/openapi.yaml"))
	model, err := doc.BuildV3Model()
	require.NoError(t, err)
	got := map[string][]string{}
	for _, response := range model.Model.Components.Responses.FromOldest() {
		problem := response.Content.GetOrZero("application/problem+json")
		if problem == nil {
			continue
		}
		properties := problem.Schema.Schema().AllOf[1].Schema().Properties
		status := properties.GetOrZero("status").Schema().Const.Value
		for _, kind := range properties.GetOrZero("type").Schema().Enum {
			got[status] = append(got[status], kind.Value)
		}
	}
	for _, kinds := range []map[string][]string{want, got} {
		for _, types := range kinds {
			slices.Sort(types)
		}
	}
	require.Equal(t, want, got)
}

// checker validates what a service answers against its document, which refers to docs/openapi.yaml.
type checker struct {
	handler http.Handler
	v       validator.Validator
	seen    map[string]bool // problems and states of tickets
}

// call sends a request, and returns its response, which must be as the document says.
func (c *checker) call(t *testing.T, method, target, body string, header ...string) testbed.Answer {
	t.Helper()
	r := testbed.Request(t, method, target, body)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got := testbed.Do(c.handler, r)
	if ok, errs := c.validate(method, target, got); !ok {
		t.Errorf("%s %s: status %d, %v, %s: %v", method, target, got.Status, got.Header, got.Body, errs)
	}
	var fields struct{ Type, State string }
	if json.Unmarshal([]byte(got.Body), &fields) == nil {
		c.seen[fields.Type[strings.LastIndex(fields.Type, "#")+1:]+fields.State] = true
	}
	return got
}

func (c *checker) validate(method, target string, a testbed.Answer) (bool, []string) {
	r := httptest.NewRequest(method, target, nil)
	resp := &http.Response{StatusCode: a.Status, Header: a.Header, Body: io.NopCloser(strings.NewReader(a.Body)), Request: r}
	ok, errs := c.v.ValidateHttpResponse(r, resp)
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
		for _, cause := range err.SchemaValidationErrors {
			texts = append(texts, cause.Reason)
		}
	}
	return ok, texts
}

// TestOpenAPI_SaysWhatAServiceAnswers is long since it is one story, in which each answer is met.
func TestOpenAPI_SaysWhatAServiceAnswers(t *testing.T) {
	b, server := testbed.NewFragile(t)
	queue, err := delayqueue.New(b.Redis, "work", delayqueue.WithPrefix(b.Prefix), delayqueue.WithMaxAge(10*time.Second), delayqueue.WithMaxDepthPerKey(3), delayqueue.WithMaxDepth(4))
	require.NoError(t, err)
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	run, running := make(chan int), make(chan struct{}, 10)
	work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		running <- struct{}{}
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(<-run)
	})
	key, status := httplock.ParamInt("order:", "id"), httplock.WithStatusPath("/tickets/")
	byUser := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	still := func(*http.Request, string) error { return nil }
	mux := http.NewServeMux()
	mux.Handle("/refuse/{id}", httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, httplock.WithIdempotency(store, httplock.RequireIdempotencyKey()), httplock.WithAnonymous())(work))
	mux.Handle("/park/{id}", httplock.PerKey(b.Locker.Guard(delayqueue.Policy(queue)), key, status, httplock.WithPrefer(), httplock.WithAnonymous(), httplock.WithMaxBody(10))(work))
	mux.Handle("/save/{id}", httplock.PerKey(b.Locker.Guard(delayqueue.Coalesce(queue)), key, status, httplock.WithPrincipal(byUser), httplock.WithReauthorize(still))(work))
	mux.Handle("/tickets/", httplock.TicketHandler(queue, func(*http.Request, delayqueue.Status) bool { return true }))
	_, v := document(t, read(t, "testdata/service.yaml"))
	c := &checker{handler: mux, v: v, seen: map[string]bool{}}
	release := b.HoldKey(t, "order:1")

	c.call(t, "POST", "/refuse/1", "b", "Idempotency-Key", "a")
	c.call(t, "POST", "/refuse/1", "b")
	c.call(t, "POST", "/refuse/1", "b", "Idempotency-Key", `"`)
	c.call(t, "POST", "/refuse/x", "b", "Idempotency-Key", "a")
	go func() { run <- http.StatusCreated }()
	require.Equal(t, http.StatusCreated, c.call(t, "POST", "/refuse/2", "b", "Idempotency-Key", "b").Status)
	<-running
	require.Equal(t, "true", c.call(t, "POST", "/refuse/2", "b", "Idempotency-Key", "b").Header.Get("Idempotent-Replayed"))
	c.call(t, "POST", "/refuse/2", "other", "Idempotency-Key", "b")

	park := func(target string, header ...string) string {
		t.Helper()
		got := c.call(t, "POST", target, "b", header...)
		require.Equal(t, http.StatusAccepted, got.Status, got.Body)
		return got.Header.Get("Location")
	}
	first, second := park("/park/1", "Prefer", "respond-async"), park("/park/1")
	older, newer := park("/save/1", "X-User", "ann"), park("/save/1", "X-User", "ann")
	c.call(t, "POST", "/park/1", "b")              // full for the key
	c.call(t, "POST", "/park/1", "longer than 10") // too large
	other := b.HoldKey(t, "order:9")
	expires := park("/park/9")
	c.call(t, "POST", "/park/9", "b") // full
	c.call(t, "GET", first, "")
	c.call(t, "GET", first, "", "Prefer", "wait=1")
	c.call(t, "GET", first+"/result", "")
	c.call(t, "GET", older, "")
	c.call(t, "DELETE", newer, "")
	c.call(t, "DELETE", newer, "")
	c.call(t, "GET", newer, "")
	c.call(t, "DELETE", older, "")
	c.call(t, "GET", "/tickets/"+strings.Repeat("0", 32), "")

	worker, err := delayqueue.NewWorker(queue, b.Locker, httplock.Replay(mux))
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	t.Cleanup(func() { assert.NoError(t, worker.Stop(context.Background())) })
	release()
	<-running
	c.call(t, "GET", first, "")
	c.call(t, "DELETE", first, "")
	run <- http.StatusTeapot
	<-running
	run <- http.StatusServiceUnavailable // and Retry-After is beyond the request's age
	end := func(at string) testbed.Answer { return c.call(t, "GET", at, "", "Prefer", "wait=30") }
	require.Equal(t, http.StatusSeeOther, end(first).Status)
	require.Equal(t, http.StatusTeapot, c.call(t, "GET", first+"/result", "").Status)
	require.Contains(t, end(second).Body, `"last_status":503`)
	end(expires)
	other()

	server.SetError("LOADING Redis is loading the dataset in memory")
	c.call(t, "POST", "/refuse/3", "b", "Idempotency-Key", "c")
	c.call(t, "GET", first, "")
	server.SetError("")

	require.Equal(t, []string{
		"bad-key", "body-too-large", "cancelled", "conflict", "dead", "done", "expired", "idempotency-key-malformed", "idempotency-key-missing",
		"idempotency-key-reused", "key-queue-full", "no-such-ticket", "queue-full", "queued", "running", "superseded", "ticket-ended", "ticket-running", "unavailable",
	}, slices.Sorted(maps.Keys(c.seen)))
}

// The checks notice what is not as the document says.
func TestOpenAPI_ChecksNotice(t *testing.T) {
	_, v := document(t, read(t, "testdata/service.yaml"))
	c := &checker{v: v}
	problem := func(kind string, status int, more string) testbed.Answer {
		return testbed.Answer{
			Status: status, Header: http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"3"}},
			Body: `{"type":"https://github.com/perkey-go/perkey/blob/main/docs/problems.md#` + kind + `","title":"t","detail":"d","status":` + strconv.Itoa(status) + more + `}`,
		}
	}
	ok, errs := c.validate("POST", "/refuse/1", problem("conflict", 409, `,"retry_after_ms":2500`))
	require.True(t, ok, errs)
	soon := problem("conflict", 409, "")
	soon.Header.Set("Retry-After", "soon")
	for name, a := range map[string]testbed.Answer{
		"a kind of another status": problem("queue-full", 409, ""),
		"an unknown kind":          problem("no-such-kind", 409, ""),
		"a text":                   problem("conflict", 409, `,"retry_after_ms":"soon"`),
		"a status of its own":      {Status: 409, Header: soon.Header, Body: strings.Replace(problem("conflict", 409, "").Body, "409", "410", 1)},
		"a header":                 soon,
		"another status":           problem("conflict", 418, ""),
	} {
		ok, _ := c.validate("POST", "/refuse/1", a)
		assert.False(t, ok, name)
	}
}
