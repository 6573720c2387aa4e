package config

import (
	"fmt"

	"github.com/perkey-go/perkey/ops"
)

// Recorder returns the Recorder of WithRecorder, or that of the file's section ops. Nil: there is
// neither.
func (rt *Runtime) Recorder() *ops.Recorder { return rt.options.recorder }

// CountTask implements asynqlock.Recorder with the Recorder, if there is one: asynqlock.FromConfig calls it.
func (rt *Runtime) CountTask(taskType, outcome string) {
	if r := rt.options.recorder; r != nil {
		r.CountTask(taskType, outcome)
	}
}

// startBeacon starts what the section ops is for.
func (rt *Runtime) startBeacon(f *File) (err error) {
	s := f.spec.Ops
	if s == nil {
		return nil
	}
	opts := option(nil, f.spec.Service, ops.WithService)
	opts = option(opts, s.Interval, ops.WithInterval)
	opts = append(opts, ops.WithLogger(rt.log()))
	if rt.beacon, err = ops.StartBeacon(rt.rdb, rt.options.recorder, rt.locker, opts...); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// closeBeacon may be called again after an error, once the client is closed.
func (rt *Runtime) closeBeacon() error {
	if rt.beacon == nil {
		return nil
	}
	return rt.beacon.Close()
}
