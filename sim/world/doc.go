// Command world plays one world: a Redis, some processes and a network between them, in which everything that happens follows from a
// seed. The program in the folder above builds and starts it; see there.
package main
