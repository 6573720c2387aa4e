//go:build !linux

package history

import "time"

var start = time.Now()

// Now is a clock in nanoseconds. Where the monotonic one cannot be read, processes
// share the wall clock as it was at their start.
func Now() int64 { return start.UnixNano() + int64(time.Since(start)) }
