package asynqlock

import (
	"context"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keytext"
)

// KeyFunc returns the key of a task. After an error the task does not run. An error that wraps
// asynq.SkipRetry or core.ErrInvalidKey says that the task has no usable key and never will:
// it is archived at once. One that wraps core.ErrInvalidOption is a mistake in the program:
// the task is deferred. Any other error is a failure, which asynq retries. It must be safe for
// concurrent use.
//
// JSONField, Header, Type and Func make the usual ones, Join and Hash combine them. Requests and
// tasks exclude one another if their keys are the same and their Lockers have one prefix:
// these make the same keys as those of package httplock.
type KeyFunc func(ctx context.Context, task *asynq.Task) (string, error)

// JSONField takes the key from a field of a JSON payload: JSONField("wallet:", "user.id")
// makes "wallet:42" of {"user": {"id": 42}}. The prefix keeps keys of different kinds apart.
// A dot goes into an object; elements of arrays, and names with a dot in them, cannot be
// reached.
//
// The value is a string, or a whole number of any size, which makes the same key however it
// is written: 42, 42.0, 4.2e1 and the string "42" do. A task with anything else is archived
// at once: another type, an empty string, a missing field, a payload that is not one JSON
// value, or one that has the field twice, also in another case ("ID" beside "id"), since
// the handler might take the other one.
func JSONField(prefix, path string) KeyFunc {
	names, err := keytext.Path(path)
	if err != nil {
		return failing(invalid("JSONField: %v", err))
	}
	return func(_ context.Context, task *asynq.Task) (string, error) {
		v, err := keytext.Field(task.Payload(), names)
		if err != nil {
			return "", unusable("JSON field %q: %w", path, err)
		}
		if v == "" {
			return "", unusable("JSON field %q is missing or empty", path)
		}
		return prefix + v, nil
	}
}

// Header takes the key from a header of the task, which asynq.NewTaskWithHeaders sets, as
// JSONField takes it from the payload. A task whose header is missing or empty is
// archived at once. Names are compared byte by byte.
func Header(prefix, name string) KeyFunc {
	if name == "" {
		return failing(invalid("Header: the name is empty"))
	}
	return func(_ context.Context, task *asynq.Task) (string, error) {
		v := task.Headers()[name]
		if v == "" {
			return "", unusable("header %q is missing or empty", name)
		}
		return prefix + v, nil
	}
}

// Type makes the task's type the key, so that a guard runs one task of a type at a time, or n with
// core.Counted(n). The prefix is as for JSONField.
func Type(prefix string) KeyFunc {
	return func(_ context.Context, task *asynq.Task) (string, error) { return prefix + task.Type(), nil }
}

// Func takes the key from f, which must return the same key each time a task is handed out.
func Func(f func(ctx context.Context, task *asynq.Task) (string, error)) KeyFunc { return f }

// Join returns a KeyFunc that joins the keys of several with "|": Join(Header("tenant:",
// "tenant"), JSONField("order:", "id")) makes "tenant:7|order:42". A "|" or "%" in a part
// becomes %7C or %25, so that different parts never make the same key. The first part
// that returns an error decides.
func Join(parts ...KeyFunc) KeyFunc {
	if len(parts) == 0 {
		return failing(invalid("Join: no parts"))
	}
	if slices.ContainsFunc(parts, func(part KeyFunc) bool { return part == nil }) {
		return failing(invalid("Join: a key function is nil"))
	}
	parts = slices.Clone(parts)
	return func(ctx context.Context, task *asynq.Task) (string, error) {
		values := make([]string, len(parts))
		for i, part := range parts {
			var err error
			if values[i], err = part(ctx, task); err != nil {
				return "", err
			}
		}
		return keytext.Join(values), nil
	}
}

// Hash lets keys be of any length: one of more than core.MaxKeyLen bytes becomes its first 64
// bytes, "~sha256:" and the hex digits of its SHA-256. Others stay as they are. A task whose
// key has control bytes is archived at once.
func Hash(key KeyFunc) KeyFunc {
	if key == nil {
		return failing(invalid("Hash: the key function is nil"))
	}
	return func(ctx context.Context, task *asynq.Task) (string, error) {
		k, err := key(ctx, task)
		if err != nil {
			return "", err
		}
		return keytext.Hash(k, core.MaxKeyLen, core.ValidateKey)
	}
}

// failing is a KeyFunc that was made by mistake: no task runs.
func failing(err error) KeyFunc {
	return func(context.Context, *asynq.Task) (string, error) { return "", err }
}

// unusable is the error of a task that never has a key. It repeats no payload: asynq
// stores it, and error handlers report it.
func unusable(format string, args ...any) error {
	return fmt.Errorf("asynqlock: no usable key in the task: %w: %w", fmt.Errorf(format, args...), asynq.SkipRetry)
}
