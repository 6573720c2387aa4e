package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// server is what Configure has for the tasks of one asynq server.
type server struct {
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector

	known   atomic.Bool // rdb has shown a task of this server as active
	looked  atomic.Bool // see check
	unknown sync.Once   // logs that it has not

	runScripts sync.Map // see runClient
	seed       maphash.Seed
	askingBy   [256]atomic.Int64 // see asking

	mu   sync.Mutex
	ends map[waitlist]*time.Timer // see wakeAfter
}

func newServer(rdb redis.UniversalClient) *server {
	return &server{
		rdb:       rdb,
		client:    asynq.NewClientFromRedisClient(rdb),
		inspector: asynq.NewInspectorFromRedisClient(rdb),
		seed:      maphash.MakeSeed(),
		ends:      map[waitlist]*time.Timer{},
	}
}

// errNotActive says that rdb does not have a task as active that its server works on: it is
// another Redis than the server's, or the task was lost there.
var errNotActive = errors.New("the Redis that Configure was given does not have this task as active")

// errUnsure says that a task was perhaps cloned.
var errUnsure = errors.New("it is not known whether the task was cloned")

// postpone has a task that was not run come back later, or ends its wait. A task on its last
// attempt that cannot be cloned stays in its worker: asynq archives it as soon as it is returned.
// One that is the next for its key, and may wait for it, is not put aside: see deferredError.next.
func (s *server) postpone(ctx context.Context, m *middleware, list waitlist, r *refusal) error {
	d := &deferredError{refusal: *r, delay: m.delay(r.remaining)}
	w, last, task := workerOf(ctx), lastAttempt(ctx), taskOf(ctx)
	var info *asynq.TaskInfo
	var err error
	if last || !s.known.Load() {
		info, err = s.activeTask(ctx)
	}
	var place wait
	var listed error
	if err == nil {
		place, listed = list.wait(ctx, s.rdb, task, "", clonedSince(info), m.listLife(), r.mayWait)
		if d.next = place.next; d.next {
			return d
		}
	}
	if err != nil || listed != nil { // what is known without the list
		place.since = cmp.Or(w.since, clonedSince(info), time.Now())
		place.waited = time.Since(place.since)
	}
	if r.remaining > 0 && place.before == 0 && listed == nil && err == nil {
		s.wakeAfter(r.remaining, list, m.expected())
	}
	d.since = place.since
	left := m.maxAge - place.waited
	if left <= 0 {
		_, _ = list.start(ctx, s.rdb, task)
		return tooOld(d, m.maxAge)
	}
	if place.before >= soonest { // others come before, and each wakes the next
		d.delay = m.delay(m.maxDelay)
	}
	d.delay = min(d.delay, max(left, m.minDelay)) // asked once more when its time is over
	if err == nil && last {
		err = s.clone(ctx, info, d)
		w.unsure = errors.Is(err, errUnsure)
	}
	if err == nil {
		if d.trouble = listed; listed != nil {
			s.log(ctx, m, listed)
		} else if d.clone != "" {
			queue, _ := asynq.GetQueueName(ctx)
			_, _ = list.wait(ctx, s.rdb, taskName(queue, d.clone), task, d.since, m.listLife(), 0) // else it comes back by itself
		}
		return d
	}
	if w.since.IsZero() { // else it was logged
		s.log(ctx, m, err)
	}
	if d.trouble = err; last {
		d.stays, w.since = true, d.since
	}
	return d
}

// soonest is how many of those that have waited for longest come back soon by themselves.
const soonest = 3

// listLife is for how long a list is kept: longer than a task may wait, since it is too old only when it comes back
// after that.
func (m *middleware) listLife() time.Duration { return 2*m.maxAge + time.Hour }

// clonedSince is since when a clone waits, if it has not run.
func clonedSince(info *asynq.TaskInfo) time.Time {
	if info == nil || info.LastErr != "" {
		return time.Time{}
	}
	origin, _ := originIn(info.ID, info.Headers)
	return origin.Since
}

// taskOf names the task of a handler's ctx, as lists do.
func taskOf(ctx context.Context) string {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	return taskName(queue, id)
}

// activeTask looks up the task of a handler's ctx. What does not fit it is another task of
// the same id, which is not to be cloned.
func (s *server) activeTask(ctx context.Context) (*asynq.TaskInfo, error) {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := s.inspector.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return nil, errNotActive
	}
	if err != nil {
		return nil, err
	}
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if info.State != asynq.TaskStateActive || info.Retried != retried || info.MaxRetry != most {
		return nil, errNotActive
	}
	s.known.Store(true)
	return info, nil
}

// check looks once, at the first task of the server that comes to a guard, whether rdb has it as active. A Redis that
// does not answer soon is asked again at the next.
func (s *server) check(ctx context.Context, m *middleware) {
	if s.known.Load() || !s.looked.CompareAndSwap(false, true) {
		return
	}
	told := make(chan error, 1)
	go func() {
		_, err := s.activeTask(ctx)
		told <- err
	}()
	var err error
	select {
	case err = <-told:
	case <-time.After(inWorker):
		err = context.DeadlineExceeded
	}
	if errors.Is(err, errNotActive) {
		s.log(ctx, m, err)
		return
	}
	s.looked.Store(err == nil)
}

// log logs why a task could not be looked up or cloned. If rdb has shown other tasks of this
// server as active, or asynq has given this handler up, it is the right Redis: another copy of the
// task has ended it.
func (s *server) log(ctx context.Context, m *middleware, err error) {
	switch queue, _ := asynq.GetQueueName(ctx); {
	case !errors.Is(err, errNotActive):
		m.log().WarnContext(ctx, "asynqlock: the Redis that Configure was given failed: while it does, the age of deferred tasks "+
			"is not known, and tasks on their last attempt wait in their workers", "queue", queue, "error", err)
	case ctx.Err() == nil && !s.known.Load():
		s.unknown.Do(func() {
			m.log().ErrorContext(ctx, "asynqlock: "+errNotActive.Error()+", although its server works on it: give Configure a client "+
				"of the Redis, and the database, that holds the server's queues. Until then the age of deferred tasks is not "+
				"bounded, and tasks on their last attempt wait in their workers", "queue", queue)
		})
	}
}

// minStay is the least delay between two attempts of a task that stays in its worker.
const minStay = 250 * time.Millisecond

// workerKey is where a task's ctx has its worker.
type workerKey struct{}

// worker is what is known of a task for as long as it is in a handler of asynq's.
type worker struct {
	since  time.Time // when a task that stays was first refused; else zero
	unsure bool      // it goes on as a clone, perhaps
}

// workerOf is nil outside of any guard.
func workerOf(ctx context.Context) *worker {
	w, _ := ctx.Value(workerKey{}).(*worker)
	return w
}

// sleep reports whether ctx did not end meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// lastAttempt reports whether asynq archives the task at any error: it does not ask
// IsFailure then.
func lastAttempt(ctx context.Context) bool {
	retried, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}
