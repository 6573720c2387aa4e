package asynqlock

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

const (
	// DefaultMinDelay is the shortest delay of a task that was refused its key, unless
	// WithDelay says otherwise.
	DefaultMinDelay = time.Second
	// DefaultMaxDelay is the longest delay, unless WithDelay says otherwise.
	DefaultMaxDelay = 30 * time.Second
	// DefaultMaxAge is how long a task is deferred for, unless WithMaxAge says otherwise.
	DefaultMaxAge = 24 * time.Hour

	// unknownRemaining stands for the lease of a holder of whom nothing is known.
	unknownRemaining = 5 * time.Second
	minMinDelay      = time.Millisecond
	minMaxAge        = time.Second
)

// Option configures [PerKey], [New] and [FromConfig].
type Option func(*settings) error

// settings are what options set.
type settings struct {
	minDelay, maxDelay time.Duration
	maxAge             time.Duration
	skip               func(context.Context, *asynq.Task) bool
	logger             *slog.Logger
	observer           Observer
	recorder           Recorder
}

func defaults() settings {
	return settings{minDelay: DefaultMinDelay, maxDelay: DefaultMaxDelay, maxAge: DefaultMaxAge}
}

// WithDelay bounds the delay after which a task that was refused its key is handed out again if no
// release wakes it, for example because the holder's process died. Between the bounds the delay is
// the rest of the holder's lease, 5 s if that is not known, and most for tasks with three or more
// before them; it is shortened by up to a half, so that tasks refused together do not come back
// together. Default 1 s to 30 s; least is at least 1 ms, and most at least least.
//
// asynq keeps times in whole seconds, rounded down, and looks for tasks that are due
// every Config.DelayedTaskCheckInterval, by default 1 s. A server whose queues are empty then takes
// them within Config.TaskCheckInterval, by default 50 ms.
func WithDelay(least, most time.Duration) Option {
	return func(s *settings) error {
		if least < minMinDelay || most < least {
			return invalid("WithDelay(%s, %s): want %s or more, and the second no shorter than the first", least, most, minMinDelay)
		}
		s.minDelay, s.maxDelay = least, most
		return nil
	}
}

// WithMaxAge sets for how long a task may be refused its key, from the first refusal since it was
// enqueued, or since it last ran, however that run ended. At the first refusal after that it is
// archived, with an error that wraps ErrTooOld. Default 24 h; at least 1 s.
func WithMaxAge(d time.Duration) Option {
	return func(s *settings) error {
		if d < minMaxAge {
			return invalid("WithMaxAge(%s): want %s or more", d, minMaxAge)
		}
		s.maxAge = d
		return nil
	}
}

// WithSkip lets the tasks run without a key for which f returns true. f must be safe for
// concurrent use.
func WithSkip(f func(context.Context, *asynq.Task) bool) Option {
	return func(s *settings) error {
		if f == nil {
			return invalid("WithSkip(nil)")
		}
		s.skip = f
		return nil
	}
}

// WithLogger sets the logger for tasks that are not run, because a Redis is out of reach or the key
// function has a mistake, for servers made without NewServer or Configure, and for handlers that
// run on after their ctx has ended. Default: slog.Default.
func WithLogger(log *slog.Logger) Option {
	return func(s *settings) error {
		if log == nil {
			return invalid("WithLogger(nil)")
		}
		s.logger = log
		return nil
	}
}

// WithObserver sets an Observer, which gets each task's outcome. Default: none.
func WithObserver(o Observer) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(o) {
			return invalid("WithObserver(nil)")
		}
		s.observer = o
		return nil
	}
}

// WithRecorder sets a Recorder, which counts tasks by their outcome, beside an observer. Default:
// none.
func WithRecorder(r Recorder) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(r) {
			return invalid("WithRecorder(nil)")
		}
		s.recorder = r
		return nil
	}
}

func (s *settings) log() *slog.Logger {
	if s.logger != nil {
		return s.logger
	}
	return slog.Default()
}

func jitter(most time.Duration) time.Duration { return rand.N(most + 1) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("asynqlock: %w: %s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
}
