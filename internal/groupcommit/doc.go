// Package groupcommit batches the requests of several goroutines: a request that finds no batch in flight is
// sent alone, at once; while a few batches are in flight, requests are collected for the next one.
//
// This is group commit, with which databases write the log records of several transactions at
// once: D. Gawlick and D. Kinkade, Varieties of Concurrency Control in IMS/VS Fast Path, 1985.
package groupcommit
