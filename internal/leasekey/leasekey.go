// Package leasekey names the value of a framework's context that is the lease of its request.
package leasekey

// Lease is the name under which an adapter puts a *core.Lease into a framework's own context that
// does not ask the request's ctx for values, such as a *gin.Context. It is a string, since gin looks
// up nothing else by itself.
const Lease = "github.com/perkey-go/perkey.Lease"
