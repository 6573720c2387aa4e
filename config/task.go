package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keytext"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// task is what a task of asynq's meets.
type task struct {
	guard *core.Guard
	key   *keyTemplate
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
		return t.key.taskKey(func(name string) (string, error) { return taskValue(taskType, payload, headers, name) })
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

func (c *checker) checkTasks(queues []string) {
	spec := &c.file.spec
	for taskType := range inOrder(c, "asynq", spec.Asynq) {
		entry, path := spec.Asynq[taskType], member("asynq", taskType)
		if strings.TrimSpace(taskType) == "" || strings.Contains(strings.TrimSuffix(taskType, "*"), "*") {
			c.At(path, "expected a type of tasks, or the beginning of some followed by *, such as report:*")
		}
		where, at, guard, g := entry.where, member(path, "key"), "the guard", entry.own
		if g != nil {
			c.checkChain(g.OnConflict, queues)
		} else {
			named := c.guardNamed(entry.guard, path, entry.where)
			if named == nil {
				continue
			}
			g, at, guard = &named.leaseSection, member(member("guards", entry.guard), "key"), fmt.Sprintf("the guard %q", entry.guard)
		}
		c.checkTaskKey(path, at, guard, where, g)
		if c.file.conflicts(g).parks() {
			c.In(where, path, "%s parks what meets a held key, but asynq is a queue itself; use reject, or retry with a short max_wait", guard)
		}
	}
}

// checkTaskKey looks for what a guard's key lacks for tasks. One of a named guard is looked at as one for
// requests, too.
func (c *checker) checkTaskKey(path, at, guard string, where strictyaml.Place, g *leaseSection) {
	if g.Key == "" {
		if !c.Failed(at) && !c.Failed(path) {
			c.In(where, path, "%s has no key; add one, such as key: wallet:{json.user_id}", guard)
		}
		return
	}
	t, problems := parseTaskTemplate(g.Key)
	switch {
	case t != nil && at == member(path, "key"):
		c.checkFixedKey(path, g, t)
	case t != nil:
	case at == member(path, "key"):
		c.badTemplate(at, problems)
	case !c.Failed(at):
		for _, problem := range problems {
			c.In(where, path, "the key of %s is for requests: %s", guard, problem)
		}
	}
}

// tasks makes what the file says of tasks.
func (c *compiler) tasks() {
	for _, taskType := range slices.Sorted(maps.Keys(c.file.spec.Asynq)) {
		entry, path := c.file.spec.Asynq[taskType], member("asynq", taskType)
		var t task
		var g *leaseSection
		if g = entry.own; g != nil {
			t.guard = c.guard(path, g)
		} else {
			g, t.guard = &c.file.spec.Guards[entry.guard].leaseSection, c.state.guards[entry.guard]
		}
		t.key, _ = parseTaskTemplate(g.Key) // checked already
		c.state.tasks[taskType] = t
	}
}
