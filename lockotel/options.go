package lockotel

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// ScopeName is the instrumentation scope of the spans.
const ScopeName = "github.com/perkey-go/perkey/lockotel"

// Option configures [Locks], [Queues] and [Middleware]. A nil one does nothing.
type Option func(*options)

type options struct {
	provider trace.TracerProvider
	tracer   trace.Tracer
	keys     bool
	roots    bool
}

// WithTracerProvider sets the tracer provider. Default, and for nil: the global one, even if it is
// set later.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(o *options) {
		if !nilcheck.IsNil(provider) {
			o.provider = provider
		}
	}
}

// WithKeys adds to the spans the key, as perkey.key or perkey.keys, and the text of the error, which may name it. Default: neither, as
// keys are often personal data.
func WithKeys() Option { return func(o *options) { o.keys = true } }

// WithRootSpans also traces calls for a key whose ctx has no span. Default: they have no span.
func WithRootSpans() Option { return func(o *options) { o.roots = true } }

func configure(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.provider == nil {
		o.provider = otel.GetTracerProvider()
	}
	o.tracer = o.provider.Tracer(ScopeName)
	return o
}

// The attributes that are ours.
const (
	keyAttribute      = attribute.Key("perkey.key")
	keysAttribute     = attribute.Key("perkey.keys")
	nameAttribute     = attribute.Key("perkey.name")
	outcomeAttribute  = attribute.Key("perkey.outcome")
	modeAttribute     = attribute.Key("perkey.mode")
	waitedAttribute   = attribute.Key("perkey.waited")
	attemptsAttribute = attribute.Key("perkey.attempts")
	waitingAttribute  = attribute.Key("perkey.waiting")
	attemptAttribute  = attribute.Key("perkey.attempt")
	lossAttribute     = attribute.Key("perkey.loss")
	heldAttribute     = attribute.Key("perkey.held")
	errorAttribute    = attribute.Key("error.type")
)

// failed gives a span the status Error.
func (o *options) failed(span trace.Span, kind string, err error) {
	text := ""
	if o.keys && err != nil {
		text = err.Error()
	}
	span.SetStatus(codes.Error, text)
	span.SetAttributes(errorAttribute.String(kind))
}

// named appends what a piece of work is called, and its key if that is wanted.
func (o *options) named(attributes []attribute.KeyValue, name, key string) []attribute.KeyValue {
	if name != "" {
		attributes = append(attributes, nameAttribute.String(name))
	}
	if o.keys && key != "" {
		attributes = append(attributes, keyAttribute.String(key))
	}
	return attributes
}
