package asynqlock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
)

// KeyFunc returns the key of a task. The task does not run if it fails. An error that
// wraps asynq.SkipRetry says that the task has no usable key and never will: it is archived
// at once. One that wraps core.ErrInvalidOption is a mistake in the program: the task is
// deferred. Any other error is a failure, which asynq retries. It must be safe for
// concurrent use.
type KeyFunc func(ctx context.Context, task *asynq.Task) (string, error)

// JSONField takes the key from a field of a JSON payload: JSONField("wallet:", "user.id")
// makes "wallet:42" of {"user":{"id":42}}. The prefix keeps keys of different kinds
// apart. Dots in path part the names of nested objects; a name with a dot in it needs Func.
//
// The value is a string that is not empty, or an integer in plain digits, of any size;
// "42" and 42 make the same key. A task is archived at once whose payload is no JSON, or
// whose field is missing, null, a fraction, written with an exponent, or anything else. So is
// one where a name on the path stands twice in spellings that differ in case only, between which
// encoding/json would choose otherwise. Of two names that are the same the last counts, as it
// does for encoding/json.
func JSONField(prefix, path string) KeyFunc {
	names := strings.Split(path, ".")
	return func(_ context.Context, task *asynq.Task) (string, error) {
		value := json.RawMessage(task.Payload())
		for _, name := range names {
			if name == "" {
				return "", invalid("JSONField: the path %q has an empty name in it", path)
			}
			var err error
			if value, err = member(value, name); err != nil {
				return "", unusable("JSON field %q: %w", path, err)
			}
		}
		v, err := scalar(value)
		if err != nil {
			return "", unusable("JSON field %q: %w", path, err)
		}
		return prefix + v, nil
	}
}

// Header takes the key from a header of the task, such as asynq.NewTaskWithHeaders sets.
// The prefix is as for JSONField. A task whose header is missing or empty is archived at once.
// Names are compared byte by byte.
func Header(prefix, name string) KeyFunc {
	return func(_ context.Context, task *asynq.Task) (string, error) {
		if name == "" {
			return "", invalid("Header: the name is empty")
		}
		v := task.Headers()[name]
		if v == "" {
			return "", unusable("header %q is missing or empty", name)
		}
		return prefix + v, nil
	}
}

// Type makes all tasks of a type share a key, for a guard of one at a time, or of n at a
// time with core.Counted(n). The prefix is as for JSONField.
func Type(prefix string) KeyFunc {
	return func(_ context.Context, task *asynq.Task) (string, error) { return prefix + task.Type(), nil }
}

// Func takes the key from f, which must find the same each time a task is run.
func Func(f func(ctx context.Context, task *asynq.Task) (string, error)) KeyFunc { return f }

// Join makes one key of several parts: Join("order:", JSONField("", "tenant"), JSONField("", "id"))
// makes "order:acme:42". The prefix is as for JSONField. A colon and a backslash inside a
// part are escaped with a backslash, so that different parts never make the same key. A task
// with an empty part is archived at once.
func Join(prefix string, parts ...KeyFunc) KeyFunc {
	return func(ctx context.Context, task *asynq.Task) (string, error) {
		if len(parts) == 0 {
			return "", invalid("Join: there are no parts")
		}
		values := make([]string, len(parts))
		for i, part := range parts {
			if part == nil {
				return "", invalid("Join: part %d is nil", i+1)
			}
			v, err := part(ctx, task)
			if err != nil {
				return "", err
			}
			if v == "" {
				return "", unusable("part %d is empty", i+1)
			}
			values[i] = escape.Replace(v)
		}
		return prefix + strings.Join(values, ":"), nil
	}
}

var escape = strings.NewReplacer(`\`, `\\`, `:`, `\:`)

// unusable is the error of a task that never has a key. It repeats no payload: asynq
// stores it, and error handlers report it.
func unusable(format string, args ...any) error {
	return fmt.Errorf("asynqlock: no usable key in the task: %w: %w", fmt.Errorf(format, args...), asynq.SkipRetry)
}

// member returns the member of a JSON object that has the name.
func member(object json.RawMessage, name string) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil || members == nil {
		return nil, fmt.Errorf("%w: the payload has no JSON object there", core.ErrInvalidKey)
	}
	value, has := members[name]
	if !has {
		return nil, fmt.Errorf("%w: it is missing", core.ErrInvalidKey)
	}
	for other := range members {
		if other != name && strings.EqualFold(other, name) {
			return nil, fmt.Errorf("%w: it is there in several spellings", core.ErrInvalidKey)
		}
	}
	return value, nil
}

// scalar returns what makes a key: a string, or the digits of an integer.
func scalar(value json.RawMessage) (string, error) {
	value = bytes.TrimSpace(value)
	if len(value) > 0 && value[0] == '"' {
		var s string
		if err := json.Unmarshal(value, &s); err == nil && s != "" {
			return s, nil
		}
		return "", fmt.Errorf("%w: it is empty", core.ErrInvalidKey)
	}
	if digits := strings.TrimPrefix(string(value), "-"); digits == "" || strings.Trim(digits, "0123456789") != "" || string(value) == "-0" {
		return "", fmt.Errorf("%w: it is neither a string nor an integer", core.ErrInvalidKey)
	}
	return string(value), nil
}
