// Package unixms is of times as Redis has them, in Unix milliseconds: 0 stands for no time.
package unixms

import "time"

// Of is a time in milliseconds; 0 if it is zero.
func Of(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Time is the time that Of made ms of; zero if ms is 0.
func Time(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
