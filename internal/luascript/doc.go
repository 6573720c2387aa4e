// Package luascript loads Lua scripts and calls them in Redis.
//
// A call names its script by its SHA1 (EVALSHA), so that the source crosses the network
// only where a server does not know it: after a restart, a failover, SCRIPT FLUSH, or on
// another node of a Cluster. The server then answers NOSCRIPT, and has done nothing. So the
// call is sent again, with the source (EVAL), which makes the server know it.
package luascript
