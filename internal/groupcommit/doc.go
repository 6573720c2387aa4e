// Package groupcommit has what several goroutines ask for done together: while a few batches
// are under way, what comes in is collected for the next one. What comes alone goes alone,
// at once, so that it costs no time to be in a group.
//
// It is group commit, with which databases write the log records of several transactions at
// once: D. Gawlick and D. Kinkade, Varieties of Concurrency Control in IMS/VS Fast Path, 1985.
package groupcommit
