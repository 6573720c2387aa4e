package httplock

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// frontCheck is what was found out about a body that is in memory: whether it is the one that was sent.
type frontCheck struct {
	reached bool
	content []byte
	err     error // errBodyGone
}

// asSent returns the body, of which all there is was read, if it is the one that the client sent, or one that reads the same.
func (b *body) asSent() ([]byte, error) {
	v := &b.front
	if !v.reached {
		v.reached, v.content = true, b.head
		if b.readInFront() {
			if v.content = madeAgain(b.request); v.content == nil {
				v.err = errBodyGone
			}
		}
	}
	return v.content, v.err
}

// readInFront reports whether something, or all, of the body was read before the guard began. A length alone does not tell:
// what decompresses leaves the header. And a form may have been parsed of a body that was put back.
func (b *body) readInFront() bool {
	r, n := b.request, int64(len(b.head))
	switch {
	case n == 0:
		return isAnnounced(r) && b.state != untouchedBody || hasForm(r)
	case n == r.ContentLength:
		return false
	case b.state == begunBody:
		return true
	}
	kind, boundary := formKind(r)
	if kind == "" || !wasParsed(r, kind, boundary, b.head) {
		return false
	}
	parsed, err := parsedForm(r, kind, n)
	if err != nil {
		return true
	}
	ours, err := canonicalForm(kind, b.head, boundary)
	return !bytes.Equal(parsed, ours) || kind == multipartForm && err != nil
}

// isAnnounced reports whether a request came with a body: one of a length, or one without that is chunked or a stream of HTTP/2.
func isAnnounced(r *http.Request) bool {
	return r.ContentLength > 0 || r.ContentLength < 0 && (len(r.TransferEncoding) > 0 || r.ProtoMajor > 1)
}

// bodyState is what can be told of a body before it is read.
type bodyState int

const (
	unknownBody   bodyState = iota // another one: in memory, or made of what was sent, or of a server other than net/http's
	serversBody                    // net/http's, and it cannot be told whether somebody has read of it
	untouchedBody                  // net/http's, and nobody has read of it
	begunBody                      // somebody has read of it, and what reads it now does not have that
)

// stateOf is that of the body that a request has now.
func stateOf(r *http.Request) bodyState {
	if isEmpty(r) {
		return unknownBody
	}
	reader, server := behind(r.Body)
	switch {
	case reader != nil && reader.begun:
		return begunBody
	case reader != nil:
		return reader.of.state
	case !server.IsValid():
		return unknownBody
	}
	switch untouched, known := isUntouched(server, r); {
	case untouched:
		return untouchedBody
	case known:
		return begunBody
	}
	return serversBody
}

// behind is a guard's reader, or the body of net/http's server, that a body is, or passes on as it is: capped, for example.
func behind(body io.Reader) (reader *bodyReader, server reflect.Value) {
	v := reflect.ValueOf(body)
	for range 10 { // what is foreign may have itself in it
		if !v.IsValid() {
			break
		}
		switch t := v.Type(); {
		case t == reflect.TypeFor[*bodyReader]():
			return (*bodyReader)(v.UnsafePointer()), reflect.Value{}
		case slices.Contains(serversBodies, t.String()):
			return nil, v.Elem()
		}
		v = passedOn(v)
	}
	return nil, reflect.Value{}
}

// serversBodies are the types of bodies of net/http's server.
var serversBodies = []string{"*http.body", "*http.http2requestBody", "*http2.requestBody"}

// passedOn is what a reader reads, if that is one thing, and the reader has no memory in which it could keep what it has read.
func passedOn(reader reflect.Value) (only reflect.Value) {
	v := reflect.Indirect(reader)
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	for _, f := range v.Fields() { // others may write to those that are no readers
		switch t, kind := f.Type(), f.Kind(); {
		case kind == reflect.Slice, kind == reflect.Array:
			return reflect.Value{}
		case !t.Implements(readerType) && (kind != reflect.Struct || !reflect.PointerTo(t).Implements(readerType)):
		case only.IsValid(), kind == reflect.Interface && f.IsNil(): // nil: not yet, or no more
			return reflect.Value{}
		case kind == reflect.Interface:
			only = f.Elem()
		default:
			only = f
		}
	}
	return only
}

var readerType = reflect.TypeFor[io.Reader]()

// isUntouched reports whether nobody has read of a body of net/http's. Not known: its length was replaced in front, or net/http
// has another form.
func isUntouched(body reflect.Value, r *http.Request) (untouched, known bool) {
	defer func() { _ = recover() }()
	pipe, length := body.FieldByName("pipe"), r.ContentLength
	switch {
	case pipe.IsValid() && pipe.IsNil(): // nothing was sent
		return true, true
	case cmp.Or(r.Header.Get("Content-Length"), "-1") != strconv.FormatInt(length, 10):
		return false, false
	case pipe.IsValid(): // a stream of HTTP/2
		mu := pipe.Elem().FieldByName("mu")
		locker := reflect.NewAt(mu.Type(), mu.Addr().UnsafePointer()).Interface().(sync.Locker)
		locker.Lock()
		defer locker.Unlock()
		buffer := pipe.Elem().FieldByName("b").Elem().Elem()
		came := length - buffer.FieldByName("expected").Int()
		return came == buffer.FieldByName("size").Int(), true
	}
	source := body.FieldByName("src").Elem().Elem()
	if left := source.FieldByName("N"); left.IsValid() {
		return left.Int() == length, true
	}
	ends := source.FieldByName("buf") // of the chunks that were read
	return source.FieldByName("n").Uint() == 0 && !source.FieldByName("checkEnd").Bool() && ends.IsZero() && !body.FieldByName("sawEOF").Bool(), true
}

// madeAgain makes the body of a form that was parsed, or returns nil. It is what was sent, in other words, if it is as long:
// ParseForm leaves out what it cannot read.
func madeAgain(r *http.Request) []byte {
	kind, _ := formKind(r)
	if kind != urlForm || len(r.PostForm) == 0 || len(r.Header["Content-Encoding"]) > 0 {
		return nil
	}
	if content := r.PostForm.Encode(); int64(len(content)) == r.ContentLength {
		return []byte(content)
	}
	return nil
}

// notStorable is why a replay could not show its handler the body, and the form, that this request's handler sees. Nil: it
// can, or the body was not read to its end.
func (b *body) notStorable() error {
	if !b.whole || b.err != nil {
		return nil //nolint:nilerr // reading it is refused for a reason of its own
	}
	r := b.request
	if _, gone := b.asSent(); gone != nil {
		return fmt.Errorf("%w: %w", errNotReplayable, gone)
	}
	if kind, _ := formKind(r); kind == urlForm && len(r.PostForm) > 0 && !parsesForms(r.Method) {
		return fmt.Errorf("%w: its method was changed in front of the guard, after its form was parsed", errNotReplayable)
	}
	if _, known := b.coding(); !known {
		return fmt.Errorf("%w: the body was replaced in front of the guard, and it cannot be told whether it still has its Content-Encoding: "+
			"have what decodes it remove the header", errNotReplayable)
	}
	return nil
}

// magic is how bodies of an encoding begin.
var magic = map[string]string{"gzip": "\x1f\x8b", "x-gzip": "\x1f\x8b", "zstd": "\x28\xb5\x2f\xfd"}

// coding is the Content-Encoding of a body that is in memory, empty if it has none. What decompresses in front may leave
// the header: then it is empty too. Not known: the body may have it or not.
func (b *body) coding() (coding string, known bool) {
	coding = strings.ToLower(strings.Join(b.request.Header["Content-Encoding"], ", "))
	if coding == "" {
		return "", true
	}
	begins, has := magic[coding]
	reader, server := behind(b.source)
	for reader != nil {
		reader, server = behind(reader.source)
	}
	switch {
	case server.IsValid():
		return coding, true
	case has && !bytes.HasPrefix(b.head, []byte(begins)):
		return "", true
	}
	return coding, int64(len(b.head)) == b.request.ContentLength
}
