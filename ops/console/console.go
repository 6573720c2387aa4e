package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/ops"
)

// What [Options].Authorize is asked about, beside the changes that package ops names.
const (
	// View is to see pages: keys, names, ids, principals, causes.
	View ops.Action = "view"
	// Payloads is to see the payloads of messages.
	Payloads ops.Action = "payloads"
	// Watch is to have processes tell what happens to a key, as it happens, for 5 min or until nobody has looked for a minute. It
	// changes no key and no message, so it needs Authorize, but not Options.Changes: it registers the watch in Redis, of which there are 16 at once.
	Watch ops.Action = "watch"
)

// Options are what a console shows, and to whom.
type Options struct {
	// Locker has the keys that are shown, and Redis is its client, where also queues, processes, records of Idempotency-Keys and
	// the audit are read, under the Locker's prefix. Both are required.
	Locker *core.Locker
	Redis  redis.UniversalClient
	// Queues are shown, and changed, in place of those of the same names: queues on another Redis, or with the Keyring of their payloads.
	Queues []*delayqueue.Queue
	// Authorize says who sends a request, or refuses with an error what it wants to do; nobody is shown the error: the answer is 403, or
	// for a *LoginError 401. It is called with View for each page, and every 2 s for one that is open, or twice a second for that of a watched key; with Payloads, and with changes, also to
	// know which links to show; and with Watch. It must be safe for concurrent use. Nil: whoever reaches the handler sees everything but payloads, and
	// can watch nothing.
	Authorize func(r *http.Request, do ops.Action) (who string, err error)
	// Changes has those whom Authorize allows make changes; without Authorize it is an error. Default: the console changes nothing.
	Changes bool
	// KeySecret, of 32 bytes or more, has keys shown as hashes that it makes, and sealed with it in addresses: who reads pages, addresses or logs of a proxy
	// sees which keys are alike, and how long they are, but not the keys. The box of exact keys takes keys as they are. What services write
	// is shown as it is: names, ids, principals, causes of failures, payloads. Nil: keys are shown.
	KeySecret []byte
	// Log gets each change, beside the audit in Redis. Nil: slog.Default.
	Log *slog.Logger
}

// LoginError is Authorize's for a request that does not say who sends it: the answer has Challenge as its WWW-Authenticate, such as
// Basic realm="perkey", for which a browser asks its user.
type LoginError struct{ Challenge string }

// Error says that a login is needed.
func (e *LoginError) Error() string { return "You have to log in." }

// New makes the console's handler. It does not talk to Redis, needs no closing, and has goroutines only while requests, or changes and
// watches that they began, are under way. Its error wraps [core.ErrInvalidOption].
func New(o Options) (http.Handler, error) {
	invalid := func(what string) error { return fmt.Errorf("console: %w: %s", core.ErrInvalidOption, what) }
	switch {
	case o.Locker == nil || nilcheck.IsNil(o.Redis):
		return nil, invalid("Locker and Redis are required")
	case slices.Contains(o.Queues, nil):
		return nil, invalid("a queue is nil")
	case o.Changes && o.Authorize == nil:
		return nil, invalid("Changes needs Authorize")
	case o.KeySecret != nil && len(o.KeySecret) < minSecret:
		return nil, invalid(fmt.Sprintf("KeySecret has %d bytes: want %d or more", len(o.KeySecret), minSecret))
	}
	c := &console{Options: o, searches: make(chan struct{}, maxSearches)}
	var err, auditErr, operatorErr, namesErr error
	if o.KeySecret != nil {
		c.names, namesErr = newKeyNames(o.KeySecret)
	}
	c.records, err = idempotency.New(o.Redis, idempotency.WithPrefix(o.Locker.Prefix()))
	c.audit, auditErr = ops.NewAudit(o.Redis, o.Locker.Prefix(), o.Log)
	c.operator, operatorErr = ops.NewOperator(o.Locker, c.audit, o.Queues...)
	if err := errors.Join(err, auditErr, operatorErr, namesErr); err != nil {
		return nil, err
	}
	c.pages = map[string]func(*http.Request) (*page, error){
		"": c.overview, "keys": c.keys, "key": c.key, "queues": c.queues, "queue": c.queue, "message": c.message,
		"dead": c.dead, "processes": c.processes, "process": c.process, "idempotency": c.idempotency, "audit": c.changes, "change": c.confirm,
	}
	c.posts = map[string]http.HandlerFunc{"change": c.change, "watch": c.watch}
	if c.names != nil { // a form that is sent by GET would put what is typed into the address
		c.posts["key"], c.posts["keys"] = c.find("key", "key"), c.find("keys", "prefix")
	}
	c.templates = templates(c.names)
	return http.NewCrossOriginProtection().Handler(c), nil
}

type console struct {
	Options
	records   *idempotency.Store
	audit     *ops.Audit
	operator  *ops.Operator
	pages     map[string]func(*http.Request) (*page, error)
	templates map[string]*template.Template
	posts     map[string]http.HandlerFunc
	names     *keyNames
	cache     cache
	history   history
	searches  chan struct{} // one for each that is under way
	streams   streams
	watches   watches
}

//go:embed templates
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// parsed has for each page the frame around it. None is executed, so that it can be cloned.
var parsed = sync.OnceValue(func() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(functions).Funcs(keyFunctions(nil)).ParseFS(templateFiles, "templates/base.html", "templates/parts.html"))
	all := map[string]*template.Template{}
	files, _ := fs.Glob(templateFiles, "templates/*.html")
	for _, file := range files {
		name := path.Base(file)
		all[name[:len(name)-len(".html")]] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, file))
	}
	return all
})

// templates are those of a console that names keys in some way.
func templates(names *keyNames) map[string]*template.Template {
	all := maps.Clone(parsed())
	for name, t := range all {
		all[name] = template.Must(t.Clone()).Funcs(keyFunctions(names))
	}
	return all
}

// page is what a template shows.
type page struct {
	Name, Title string // of the template, and of the page
	Nav         string // the part of the console that it belongs to
	Prefix, Who string
	Key         string // in the search box
	At          time.Time
	Assets      string // names the version of what is embedded
	Trouble     []trouble
	Quiet       bool            // it is not kept up to date
	Changed     <-chan struct{} // closed when there is something new; nil: it is not known before it is read
	Status      int             // 0: OK
	Body        any
}

// trouble is a part of a page that could not be read.
type trouble struct {
	What  string
	Err   error
	Known bool
	At    time.Time
	Key   string // that the Err may name
}

// troubled notes that a panel is not up to date.
func troubled[T any](p *page, what string, shown panel[T]) {
	if shown.Err != nil {
		p.Trouble = append(p.Trouble, trouble{What: what, Err: shown.Err, Known: shown.Known, At: shown.At})
	}
}

// httpError is a page's refusal.
type httpError struct {
	status int
	text   string
}

func (e *httpError) Error() string { return e.text }

// ServeHTTP routes by the last segment of the path, so that it does not matter where the console is mounted.
func (c *console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if r.URL.Path == "" { // mounted with StripPrefix, and asked for without the slash
		asked, _, _ := strings.Cut(r.RequestURI, "?")
		_, last := path.Split(asked)
		header.Set("Location", "./"+last+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	_, name := path.Split(r.URL.Path)
	if serveAsset(w, r, name) {
		return
	}
	who, err := c.authorize(r, View)
	if err != nil {
		c.refuse(w, err)
		return
	}
	show, ok := c.pages[name]
	change, changes := c.posts[name]
	switch {
	case changes && r.Method == http.MethodPost:
		change(w, r)
	case !ok:
		c.refuse(w, &httpError{http.StatusNotFound, "There is no such page."})
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		c.refuse(w, &httpError{http.StatusMethodNotAllowed, "This console does not change that."})
	case r.Header.Get("Accept") == "text/event-stream":
		c.stream(w, r, who, show)
	case name == "keys" && r.URL.Query().Has("prefix"):
		c.search(w, r, who)
	default:
		c.render(w, r, who, show)
	}
}

// authorize asks the user's hook.
func (c *console) authorize(r *http.Request, do ops.Action) (who string, err error) {
	switch {
	case do != View && do != Payloads && do != Watch && !c.Changes:
		return "", &httpError{http.StatusForbidden, "This console changes nothing."}
	case c.Authorize == nil && do == View:
		return "", nil
	case c.Authorize == nil:
		return "", &httpError{http.StatusForbidden, "This console does not show that."}
	}
	if who, err = c.Authorize(r, do); err != nil {
		if login, ok := errors.AsType[*LoginError](err); ok {
			return "", login
		}
		return "", &httpError{http.StatusForbidden, "You may not do that here."}
	}
	return who, nil
}

func (c *console) allowed(r *http.Request, do ops.Action) bool {
	_, err := c.authorize(r, do)
	return err == nil
}

// may is which of some changes somebody may make.
func (c *console) may(r *http.Request, changes ...ops.Action) (all []ops.Action) {
	for _, do := range changes {
		if c.allowed(r, do) {
			all = append(all, do)
		}
	}
	return all
}

// read makes a page within the time that a page has.
func (c *console) read(r *http.Request, who string, show func(*http.Request) (*page, error)) (*page, error) {
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	var p *page
	var err error
	var answers panel[bool]
	together(func() { p, err = show(r) }, func() { answers = c.ping(ctx) })
	if err != nil {
		return nil, err
	}
	if p.Who = who; answers.Err != nil { // what the page shows may be too new to have been read again
		p.Trouble = slices.Insert(p.Trouble, 0, trouble{What: "Redis does not answer", Err: answers.Err, Known: answers.Known, At: answers.At})
	}
	c.frame(p)
	return p, nil
}

// ping reports whether Redis answers.
func (c *console) ping(ctx context.Context) panel[bool] {
	return get(ctx, &c.cache, "ping", pingEvery, func(ctx context.Context) (bool, error) { return true, c.Redis.Ping(ctx).Err() })
}

func (c *console) frame(p *page) {
	p.Prefix, p.At, p.Assets = c.Locker.Prefix(), time.Now(), assetVersion()
	p.Nav = cmp.Or(p.Nav, p.Name)
}

func (c *console) render(w http.ResponseWriter, r *http.Request, who string, show func(*http.Request) (*page, error)) {
	p, err := c.read(r, who, show)
	if err != nil {
		c.refuse(w, err)
		return
	}
	c.write(w, p)
}

// write sends a whole page.
func (c *console) write(w http.ResponseWriter, p *page) {
	var b bytes.Buffer
	if err := c.templates[p.Name].ExecuteTemplate(&b, "page", p); err != nil {
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		w.WriteHeader(p.Status)
	}
	_, _ = w.Write(b.Bytes()) // whoever has left needs nothing
}

// refuse answers with an error's page.
func (c *console) refuse(w http.ResponseWriter, err error) {
	p := &page{Name: "error", Title: "Error", Quiet: true, Status: http.StatusInternalServerError}
	if refusal, ok := errors.AsType[*httpError](err); ok {
		p.Status = refusal.status
	} else if login, ok := errors.AsType[*LoginError](err); ok {
		p.Status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", login.Challenge)
	}
	p.Title = map[int]string{
		http.StatusNotFound: "Not found", http.StatusForbidden: "Not allowed", http.StatusUnauthorized: "Not logged in", http.StatusBadRequest: "Not understood", http.StatusTooManyRequests: "Too many",
		http.StatusMethodNotAllowed: "Not changed", http.StatusServiceUnavailable: "Redis does not answer",
	}[p.Status]
	p.Title = cmp.Or(p.Title, "Error")
	p.Body = err.Error()
	c.frame(p)
	c.write(w, p)
}

var assetTypes = map[string]string{
	"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
}

// serveAsset sends a file that pages need. It has nothing of the service in it, so anybody may have it.
func serveAsset(w http.ResponseWriter, r *http.Request, name string) bool {
	kind, ok := assetTypes[name]
	if !ok {
		return false
	}
	content, _ := assetFiles.ReadFile("assets/" + name)
	w.Header().Set("Content-Type", kind)
	if r.URL.Query().Get("v") == assetVersion() {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	return true
}

// assetVersion changes when an asset does.
var assetVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		content, _ := assetFiles.ReadFile("assets/" + name)
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
})
