package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/keytext"
)

// task is what a task of asynq's meets.
type task struct {
	guard *core.Guard
	key   *httplock.KeyTemplate
}

// Task implements asynqlock.Tasks: it returns the guard of a type of tasks, and what makes their keys, as the file
// has them now. False: the file has neither the type nor the beginning of it, and its tasks need no key. It
// needs no asynq.
func (rt *Runtime) Task(taskType string) (guard *core.Guard, key func(payload []byte, headers map[string]string) (string, error), ok bool) {
	t, ok := typed(rt.current.Load().tasks, taskType)
	if !ok {
		return nil, nil, false
	}
	return t.guard, func(payload []byte, headers map[string]string) (string, error) {
		return t.key.KeyOf(func(name string) (string, error) { return taskValue(taskType, payload, headers, name) })
	}, true
}

// typed finds what a file says of a type: under its name, or else under the longest beginning.
func typed[T any](tasks map[string]T, taskType string) (found T, ok bool) {
	if found, ok = tasks[taskType]; ok {
		return found, true
	}
	for n := len(taskType); n >= 0; n-- {
		if found, ok = tasks[taskType[:n]+"*"]; ok {
			return found, true
		}
	}
	return found, false
}

// taskValue is a value that a key reads from a task. Its errors say that it never has one.
func taskValue(taskType string, payload []byte, headers map[string]string, name string) (value string, err error) {
	kind, of, _ := strings.Cut(name, ".")
	switch kind {
	case "type":
		return taskType, nil
	case "header":
		value = headers[of]
	case "json":
		var path []string
		if path, err = keytext.Path(of); err == nil {
			value, err = keytext.Field(payload, path)
		}
	}
	if err == nil && value == "" {
		err = errors.New("it is missing or empty")
	}
	if err != nil {
		return "", fmt.Errorf("config: %w: {%s}: %w", core.ErrInvalidKey, name, err)
	}
	return value, nil
}

func (d *decoder) checkTasks(queues []string) {
	says := &d.file.says
	for _, taskType := range d.inOrder("asynq", slices.Collect(maps.Keys(says.Asynq))) {
		entry, path := says.Asynq[taskType], member("asynq", taskType)
		if strings.TrimSpace(taskType) == "" || strings.Contains(strings.TrimSuffix(taskType, "*"), "*") {
			d.at(path, "is not a type of tasks; want one, or the beginning of some with * behind, such as report:*")
		}
		where, at, guard, g := entry.where, member(path, "key"), "the guard", entry.own
		if g != nil {
			d.checkLease(path, g, queues)
		} else {
			named := d.guardNamed(entry.guard, path, entry.where)
			if named == nil {
				continue
			}
			g, at, guard = &named.leaseSection, member(member("guards", entry.guard), "key"), fmt.Sprintf("the guard %q", entry.guard)
		}
		d.checkTaskKey(path, at, guard, where, g)
		if d.file.conflicts(g).parks() {
			d.in(where, path, guard+" parks what meets a held key, and tasks are not parked: asynq is a queue itself; want reject, or retry with a short max_wait")
		}
	}
}

// checkTaskKey looks for what a guard's key lacks for tasks. One of a named guard is looked at as one for
// requests, too.
func (d *decoder) checkTaskKey(path, at, guard string, where place, g *leaseSection) {
	if g.Key == "" {
		if !d.failed(at) && !d.failed(path) {
			d.in(where, path, guard+" has no key; want a field key in it, such as wallet:{json.user_id}")
		}
		return
	}
	t, err := httplock.ParseTemplate(g.Key, httplock.ForTasks())
	switch {
	case err == nil && at == member(path, "key"):
		d.checkFixedKey(path, g, t)
	case err == nil:
	case at == member(path, "key"):
		d.badTemplate(at, err)
	case !d.failed(at):
		for _, problem := range templateProblems(err) {
			d.in(where, path, fmt.Sprintf("the key of %s is for requests: %s", guard, problem))
		}
	}
}

// tasks makes what the file says of tasks.
func (c *compiler) tasks() {
	for _, taskType := range slices.Sorted(maps.Keys(c.file.says.Asynq)) {
		entry, path := c.file.says.Asynq[taskType], member("asynq", taskType)
		var t task
		var g *leaseSection
		if g = entry.own; g != nil {
			t.guard = c.guard(path, g)
		} else {
			g, t.guard = &c.file.says.Guards[entry.guard].leaseSection, c.state.guards[entry.guard]
		}
		var err error
		if t.key, err = httplock.ParseTemplate(g.Key, httplock.ForTasks()); err != nil {
			c.badTemplate(member(path, "key"), err)
		}
		c.state.tasks[taskType] = t
	}
}
