package httplock

import "time"

const (
	// DefaultMaxBody is how many bytes of a body are kept while a request waits or is parked,
	// unless WithMaxBody says otherwise.
	DefaultMaxBody = 1 << 20
	// maxMaxBody bounds WithMaxBody: each waiting request holds that much memory.
	maxMaxBody = 64 << 20
	// DefaultReadAhead is how many bytes of a body are read before the key is acquired, where the
	// guard only rejects, unless WithReadAhead says otherwise.
	DefaultReadAhead = 64 << 10
	// DefaultBodyTimeout is how long a body may take, unless WithBodyTimeout says otherwise.
	DefaultBodyTimeout = 30 * time.Second
	// maxBodyTimeout bounds WithBodyTimeout.
	maxBodyTimeout = 24 * time.Hour
	// DefaultMaxWaitingBytes is how many bytes the bodies of waiting requests may take up, unless
	// WithMaxWaitingBytes says otherwise.
	DefaultMaxWaitingBytes = 256 << 20
	// minMaxWaitingBytes bounds WithMaxWaitingBytes from below.
	minMaxWaitingBytes = 2 << 20
	// maxMaxWaitingBytes bounds it from above.
	maxMaxWaitingBytes int64 = 1 << 40
)

// bodyRules is what a route's options say about bodies.
type bodyRules struct {
	max, readAhead int64
	timeout        time.Duration
	maxWaiting     int64
	stream         bool
}

func defaultBodyRules() bodyRules {
	return bodyRules{max: DefaultMaxBody, readAhead: DefaultReadAhead, timeout: DefaultBodyTimeout, maxWaiting: DefaultMaxWaitingBytes}
}

// check is called once all options are known.
func (b *bodyRules) check() error {
	if longest := max(b.max, b.readAhead); b.maxWaiting <= longest {
		return invalid("WithMaxWaitingBytes(%d): want more than the longest body that is read before the key, which is %d bytes by WithMaxBody and WithReadAhead",
			b.maxWaiting, longest)
	}
	return nil
}

// WithMaxBody sets the cap, in bytes, on the body of a request that may wait or be parked: up to so
// much is read into memory before the request asks for its key. A request with a longer body is not
// parked: the answer is 413. It does wait, but if its client leaves meanwhile this is not noticed.
// Bodies of requests that run are not capped. Default 1 MiB; 1 byte to 64 MiB.
//
// A queue has its own cap on what it stores, which is the body and some hundred bytes more.
func WithMaxBody(n int64) Option {
	return func(m *Middleware) error {
		if n < 1 || n > maxMaxBody {
			return invalid("WithMaxBody(%d): want 1 to %d bytes", n, maxMaxBody)
		}
		m.body.max = n
		return nil
	}
}

// WithReadAhead sets how many bytes of a body are read into memory before the request asks for its
// key where the guard's policy is core.RejectConflicts: a client that sends slowly does not hold
// the key meanwhile. The handler reads the rest under its lease. The same holds for bodies that are
// longer than [WithMaxBody] allows. Default 64 KiB; 1 byte to 64 MiB.
func WithReadAhead(n int64) Option {
	return func(m *Middleware) error {
		if n < 1 || n > maxMaxBody {
			return invalid("WithReadAhead(%d): want 1 to %d bytes", n, maxMaxBody)
		}
		m.body.readAhead = n
		return nil
	}
}

// WithBodyTimeout bounds how long the service waits for a client to send a body. What is read before the request asks
// for its key (WithMaxBody, WithReadAhead) has to arrive in this time; otherwise the answer is 408 and the handler does
// not run. For the rest of a longer body, the handler's reads wait as long again in total; then they fail with an error
// that matches os.ErrDeadlineExceeded, so that the client does not keep the key. Time between the handler's reads does
// not count. Raise it for large uploads. Default 30 s, or the server's ReadTimeout if that is shorter; 1 ms to 24 h.
//
// An earlier read deadline of the connection, or of the HTTP/2 stream, counts: the server's ReadTimeout, for the
// handler's reads too, or one that middleware in front has set. Of HTTP/1 without a ReadTimeout the guard replaces the
// latter while the handler runs, if it has not read the whole body, and when the guard is done: nobody can ask for it,
// and a client that withholds the rest would keep the key. Where middleware in front hides the connection, as
// http.TimeoutHandler does, a read fails only once the client sends something after that time.
func WithBodyTimeout(d time.Duration) Option {
	return func(m *Middleware) error {
		if d < time.Millisecond || d > maxBodyTimeout {
			return invalid("WithBodyTimeout(%s): want %s to %s", d, time.Millisecond, maxBodyTimeout)
		}
		m.body.timeout = d
		return nil
	}
}

// WithStreamBody leaves bodies to the handler, which reads all of them under its lease, and for as
// long as it likes: for routes whose handlers answer while the client still sends. A client can
// hold the key for as long as it keeps sending. A request with a body is not parked, and a client
// that leaves while its request waits is not noticed. It excludes WithIdempotency.
func WithStreamBody() Option {
	return func(m *Middleware) error {
		m.body.stream = true
		return nil
	}
}

// WithMaxWaitingBytes bounds the memory that bodies take up in this process while their requests wait: from their first
// byte until they have their key, are parked or are refused. A request whose body would exceed it is answered with 503
// and Retry-After. The bodies of all routes are counted together, and each route compares the sum with its own bound: a
// route with a lower bound refuses earlier. What counts is the size of the buffers, which can be somewhat larger than
// their content. What the handler reads, and the copy of a parked request on its way to Redis, do not count. Default
// 256 MiB; 2 MiB to 1 TiB, and more than [WithMaxBody] and [WithReadAhead] say.
func WithMaxWaitingBytes(n int64) Option {
	return func(m *Middleware) error {
		if n < minMaxWaitingBytes || n > maxMaxWaitingBytes {
			return invalid("WithMaxWaitingBytes(%d): want %d to %d", n, minMaxWaitingBytes, maxMaxWaitingBytes)
		}
		m.body.maxWaiting = n
		return nil
	}
}
