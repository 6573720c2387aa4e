package httplock_test

import (
	"bytes"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// form writes a multipart form by mime/multipart, with a new boundary each time.
func form(t *testing.T, fields ...[2]string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		if name, file := strings.CutPrefix(f[0], "@"); file {
			part, err := w.CreateFormFile(name, name+".bin")
			require.NoError(t, err)
			_, err = part.Write([]byte(f[1]))
			require.NoError(t, err)
			continue
		}
		require.NoError(t, w.WriteField(f[0], f[1]))
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), b.String()
}

// described is a request with an Idempotency-Key and a Content-Type.
func described(t *testing.T, key, contentType, body string) *http.Request {
	t.Helper()
	r := withKey(t, testbed.OrderPath, key, body)
	r.Header.Set("Content-Type", contentType)
	return r
}

// requireCompared posts two payloads under one key: the second is answered as the first if it is the same one, and never runs.
func requireCompared(t *testing.T, b *testbed.Fixture, key string, first, second *http.Request, same bool) {
	t.Helper()
	var runs atomic.Int64
	h := idempotent(t, b, nil, count(&runs, http.StatusOK))
	for _, r := range []*http.Request{first, second} {
		r.Header.Set("Idempotency-Key", fmt.Sprintf("%q", key))
	}
	was := testbed.Do(h, first)
	require.Equal(t, http.StatusOK, was.Status, key)
	if again := testbed.Do(h, second); same {
		require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"), "%s: %s", key, again.Body)
		requireReplayed(t, was, again)
	} else {
		testbed.RequireProblem(t, again, http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	}
	require.EqualValues(t, 1, runs.Load(), key)
}

func TestPayload_MediaTypesAreReadAsTheRFCSays(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for i, test := range []struct {
		first, second string
		same          bool
	}{
		{"application/json", "Application/JSON", true},
		{"application/json", "application/json; charset=utf-8", true},
		{"application/json; charset=UTF-8", `application/json;charset="utf-8"`, true},
		{"application/merge-patch+json", "application/merge-patch+json; charset=utf-8", true},
		{"application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=UTF-8", true},
		{"text/plain; charset=utf-8; format=flowed", `text/plain;Format=flowed ;  Charset="UTF-8"`, true},
		{"application/json; charset=utf-16", "application/json", false},
		{"text/plain; charset=utf-8", "text/plain", false},
		{"text/plain; charset=utf-8", "text/plain; charset=iso-8859-1", false},
		{"application/json; profile=a", "application/json; profile=A", false},
		{"application/json", "text/json", false},
		{"application/json", "", false},
		{"a/b; c=1; c=2", "a/b; c=2; c=1", false}, // no media type
		{"no media type", "No media type", false},
		{"a/b; x*=utf-8''e", "a/b; x=e", true},
	} {
		requireCompared(t, b, fmt.Sprint(i), described(t, "", test.first, "a=1"), described(t, "", test.second, "a=1"), test.same)
	}
}

func TestPayload_OfMultipartIsItsPartsInOrder(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	fields := [][2]string{{"a", "1"}, {"@file", "\x00\r\n--not a boundary\r\n"}, {"b", ""}}
	contentType, whole := form(t, fields...)
	boundary := strings.TrimPrefix(contentType, "multipart/form-data; boundary=")
	_, other := form(t, [2]string{"a", "1"})
	require.NotContains(t, other, boundary, "each form has a boundary of its own")
	form := func(fields ...[2]string) (string, string) { return form(t, fields...) }
	rewritten := func(contentType, from, to string) func() (string, string) {
		return func() (string, string) { return contentType, strings.ReplaceAll(whole, from, to) }
	}
	for name, test := range map[string]struct {
		again func() (contentType, body string)
		same  bool
	}{
		"another boundary":      {func() (string, string) { return form(fields...) }, true},
		"quoted boundary":       {rewritten(`multipart/form-data; boundary="a b"`, boundary, "a b"), true},
		"header names, order":   {rewritten("Multipart/Form-Data; Boundary="+boundary, "Content-Type: application/octet-stream", "content-type:  application/octet-stream"), true},
		"another order":         {func() (string, string) { return form(fields[1], fields[0], fields[2]) }, true},
		"another value":         {func() (string, string) { return form([2]string{"a", "2"}, fields[1], fields[2]) }, false},
		"another name":          {func() (string, string) { return form([2]string{"c", "1"}, fields[1], fields[2]) }, false},
		"a part more":           {func() (string, string) { return form(append(fields, [2]string{"c", ""})...) }, false},
		"a part less":           {func() (string, string) { return form(fields[:2]...) }, false},
		"moved bytes":           {func() (string, string) { return form(fields[0], [2]string{"@file", fields[1][1][:5]}, fields[2]) }, false},
		"another file name":     {rewritten(contentType, "file.bin", "File.bin"), false},
		"another type of part":  {rewritten(contentType, "application/octet-stream", "image/png"), false},
		"truncated":             {func() (string, string) { return contentType, whole[:len(whole)-len(boundary)-8] }, false},
		"truncated in a header": {func() (string, string) { return contentType, whole[:strings.Index(whole, "filename")] }, false},
		"another encoding":      {rewritten(contentType, "Content-Type: ", "Content-Transfer-Encoding: quoted-printable\r\nContent-Type: "), false},
		"another multipart":     {rewritten("multipart/mixed; boundary="+boundary, "", ""), false},
		"no boundary":           {rewritten("multipart/form-data", "", ""), false},
		"the wrong boundary":    {rewritten("multipart/form-data; boundary=x", "", ""), false},
		"another parameter":     {rewritten(contentType+"; charset=utf-8", "", ""), false},
	} {
		again, body := test.again()
		requireCompared(t, b, name, described(t, "", contentType, whole), described(t, "", again, body), test.same)
	}
}

// What is no multipart, whatever it says, is compared as it is: it runs once, like anything else.
func TestPayload_TruncatedMultipartIsItsBytes(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	contentType, whole := form(t, [2]string{"a", "1"}, [2]string{"b", "2"})
	boundary := strings.TrimPrefix(contentType, "multipart/form-data; boundary=")
	word := func(n int) bool { return strings.ContainsAny(whole[n:n+1], "0123456789abcdefghijklmnopqrstuvwxyz") }
	var runs atomic.Int64
	h := idempotent(t, b, nil, count(&runs, http.StatusOK))
	for n := range len(whole) - 2 { // the last two are a line's end, which may be missing
		if n > 1 && word(n-2) && word(n-1) && word(n) && word(n+1) {
			continue // in the midst of a word
		}
		runs.Store(0)
		key, body := fmt.Sprint("k", n), whole[:n]
		first := testbed.Do(h, described(t, key, contentType, body))
		requireReplayed(t, first, testbed.Do(h, described(t, key, contentType, body)))
		require.Equal(t, http.StatusUnprocessableEntity, testbed.Do(h, described(t, key, contentType, body+"x")).Status, n)
		if n > 0 {
			moved := testbed.Do(h, described(t, key, "multipart/form-data; boundary=other", strings.ReplaceAll(body, boundary, "other")))
			require.Equal(t, http.StatusUnprocessableEntity, moved.Status, n)
		}
		require.EqualValues(t, 1, runs.Load())
	}
}

// A client that reads nothing and sends much costs no more than its body is long.
func TestPayload_HugeMultipartMeetsTheBoundOnBodies(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	h := idempotent(t, b, nil, count(&runs, http.StatusOK))
	contentType, body := form(t, [2]string{"@file", strings.Repeat("x", 2<<20)})
	testbed.RequireProblem(t, testbed.Do(h, described(t, "large", contentType, body)), http.StatusRequestEntityTooLarge, "body-too-large", false)
	require.Zero(t, runs.Load())

	for name, part := range map[string]string{
		"parts":      "--b\r\n\r\n\r\n",
		"headers":    "A: b\r\n",
		"dashes":     "--b-",
		"line feeds": "\n--b\n",
		"one header": "A",
	} {
		body := "--b\r\n" + strings.Repeat(part, httplock.DefaultMaxBody/len(part)-10)
		began := time.Now()
		for range 2 {
			testbed.Do(h, described(t, `"`+name+`"`, "multipart/form-data; boundary=b", body))
		}
		require.Less(t, time.Since(began), time.Minute, "%s: at most 0.5 s on an idle machine", name)
	}
	require.EqualValues(t, 5, runs.Load())
}

func TestPayload_CanBeChosen(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	// The timestamp, which each attempt has anew, is left out.
	h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		var content bytes.Buffer
		_, err := content.ReadFrom(r.Body)
		assert.NoError(t, err)
		assert.Contains(t, content.String(), "@", "the handler has the whole body")
		ok(w, r)
	}, httplock.IdempotencyPayload(func(r *http.Request, body []byte) ([]byte, error) {
		assert.Equal(t, http.MethodPost, r.Method)
		before, _, found := bytes.Cut(body, []byte("@"))
		switch {
		case !found:
			return nil, httplock.BadKey(errors.New("no timestamp"))
		case len(before) == 0:
			return nil, errors.New("ours")
		}
		return before, nil
	}))
	first := testbed.Do(h, described(t, "k", "text/plain", "pay 7 @1"))
	requireReplayed(t, first, testbed.Do(h, described(t, "k", "text/html", "pay 7 @2")))
	testbed.RequireProblem(t, testbed.Do(h, described(t, "k", "text/plain", "pay 8 @1")), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	r := withKey(t, testbed.OrderPath+"?x=1", "k", "pay 7 @1")
	require.Equal(t, http.StatusUnprocessableEntity, testbed.Do(h, r).Status, "the target counts, whatever is chosen")
	testbed.RequireProblem(t, testbed.Do(h, described(t, "k", "", "pay 7")), http.StatusBadRequest, "bad-key", false)
	testbed.RequireProblem(t, testbed.Do(h, described(t, "k", "", "@1")), http.StatusInternalServerError, "internal", false)
	require.EqualValues(t, 1, runs.Load())
}

// Clients send other things than forms as one: what they mean differs where a form would not.
func TestPayload_OfAFormIsAnotherOneOnlyInOtherWords(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	const kind = "application/x-www-form-urlencoded"
	for i, test := range []struct {
		first, second string
		same          bool
	}{
		{`{"tel":"+49"}`, `{"tel":" 49"}`, false},
		{` ["+49"]`, ` [" 49"]`, false},
		{`"+49"`, `" 49"`, false},
		{"<tel>+49</tel>", "<tel> 49</tel>", false},
		{"tel=%2B49&a=b+c", "a=b+c&tel=%2B49", true},
		{"tel=%2B49", "tel=%2b49", true},
		{"tel=%2B49", "tel=+49", false},
	} {
		requireCompared(t, b, fmt.Sprint(i), described(t, "", kind, test.first), described(t, "", kind, test.second), test.same)
	}
}
