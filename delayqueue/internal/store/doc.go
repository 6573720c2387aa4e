// Package store is a partition of a queue as it lies in Redis: its scripts, its records, and the batches in which it is asked. It
// knows no Queue and no Worker. The layout is described in lua/common.lua, each script at its beginning.
//
// Go-redis may send each script again when a reply is lost: each answers its second run as it answered the first.
package store
