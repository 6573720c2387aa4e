package asynqlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// Origin describes the task that a clone continues.
type Origin struct {
	// ID is the id of the task that was enqueued first.
	ID string `json:"id"`
	// Clone is this clone's number: it grows from 1, and skips numbers whose ids are taken. The
	// clone's own id is ID~Clone.
	Clone int `json:"clone"`
	// Retried and MaxRetry are the counters of that task when it was cloned first. A clone
	// has no retry left either: its own counters are zero.
	Retried  int `json:"retried"`
	MaxRetry int `json:"max_retry"`
	// Since is when the task was first refused its key, without a run in between.
	Since time.Time `json:"since"`
}

// OriginOf returns the original of a handler's task. False: the task is not a clone. ctx is the
// handler's, or derived from it.
func OriginOf(ctx context.Context, task *asynq.Task) (Origin, bool) {
	id, _ := asynq.GetTaskID(ctx)
	return originIn(id, task.Headers())
}

// originHeader is the header that makes a task a clone.
const originHeader = "Perkey-Origin"

// originIn reads the header. One that a handler copied to another task is not that
// task's: it must fit the id.
func originIn(id string, headers map[string]string) (Origin, bool) {
	var o Origin
	if err := json.Unmarshal([]byte(headers[originHeader]), &o); err != nil || o.Clone < 1 || id != o.cloneID() {
		return Origin{}, false
	}
	return o, true
}

func (o Origin) cloneID() string { return o.ID + "~" + strconv.Itoa(o.Clone) }

// The search for an id that is free goes through the next ones, so that a task that is
// cloned twice meets its clone, and then through random ones: an id that is given again and
// again leaves many behind, which asynq keeps in its archive.
const (
	nextIDs   = 100
	randomIDs = 10
	idRange   = 1 << 24
)

// clone enqueues a task once more, under a derived id, since asynq refuses the id of an active
// one. All that asynq keeps of the task goes with it, but for the group: a task that came
// to a handler has left that. Having no retry left stays as it is: MaxRetry is 0.
//
// The same task cloned twice, since asynq was not told of the first time, or since the reply was
// lost, finds its clone there. One that has ended already is no reason to drop this copy: it
// may have been run again by hand.
func (s *server) clone(ctx context.Context, info *asynq.TaskInfo, d *deferredError) error {
	origin, ok := originIn(info.ID, info.Headers)
	if !ok {
		origin = Origin{ID: info.ID, Retried: info.Retried, MaxRetry: info.MaxRetry}
	}
	origin.Since = d.since
	for try := range nextIDs + randomIDs {
		origin.Clone++
		if try >= nextIDs {
			origin.Clone += rand.IntN(idRange)
		}
		err := s.enqueue(ctx, info, origin, d.delay)
		if err != nil {
			alive, unknown := s.isAlive(info, origin)
			switch {
			case unknown != nil:
				return fmt.Errorf("%w: %w", errUnsure, err)
			case !alive && errors.Is(err, asynq.ErrTaskIDConflict):
				continue
			case !alive:
				return err
			}
		}
		d.clone = origin.cloneID()
		return nil
	}
	return fmt.Errorf("asynqlock: the ids after %s are taken", info.ID)
}

// enqueue enqueues a clone, with the unique lock of the task if that has one.
func (s *server) enqueue(ctx context.Context, info *asynq.TaskInfo, o Origin, delay time.Duration) error {
	encoded, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("asynqlock: encode %s: %w", originHeader, err)
	}
	headers := maps.Clone(info.Headers)
	if headers == nil {
		headers = make(map[string]string, 1)
	}
	headers[originHeader] = string(encoded)

	opts := []asynq.Option{
		asynq.TaskID(o.cloneID()), asynq.Queue(info.Queue), asynq.MaxRetry(0), asynq.ProcessIn(delay),
		asynq.Timeout(info.Timeout), asynq.Deadline(info.Deadline), asynq.Retention(info.Retention),
	}
	task := asynq.NewTaskWithHeaders(info.Type, info.Payload, headers, opts...)
	unique := asynq.NewClientFromRedisClient(uniqueClient{UniversalClient: s.rdb, of: info.ID})
	if _, err = unique.EnqueueContext(ctx, task, asynq.Unique(uniquePlaceholder)); errors.Is(err, asynq.ErrDuplicateTask) {
		_, err = s.client.EnqueueContext(ctx, task)
	}
	return err
}

// isAlive reports whether the clone is there, has not ended, and goes on for this task, and
// not for an earlier one whose id was given again.
func (s *server) isAlive(task *asynq.TaskInfo, o Origin) (bool, error) {
	there, err := s.inspector.GetTaskInfo(task.Queue, o.cloneID())
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, cloned := originIn(there.ID, there.Headers)
	ended := there.State == asynq.TaskStateArchived || there.State == asynq.TaskStateCompleted
	return cloned && !ended && there.Type == task.Type && bytes.Equal(there.Payload, task.Payload), nil
}
