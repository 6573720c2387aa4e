// Package store is a partition of a queue as it lies in Redis: its scripts, its records, and the batches in which it is asked. It
// knows neither who enqueues nor who runs, and decides nothing that a script does not decide. The layout is described in
// lua/common.lua, each script at its beginning.
//
// Go-redis may send each script again when a reply is lost: each answers its second run as it answered the first.
package store
