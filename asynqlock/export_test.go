package asynqlock

import "time"

// Delay is that of a task whose key's holder has so much left of its lease.
func Delay(remaining time.Duration, opts ...Option) time.Duration {
	m := &middleware{settings: defaults()}
	for _, opt := range opts {
		if err := opt(&m.settings); err != nil {
			panic(err)
		}
	}
	return m.delay(remaining)
}
