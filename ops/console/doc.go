// Package console is a web console for those who operate services that use perkey: who holds which key, who waits for it,
// what is parked, which messages died and why, and which processes there are.
//
//	pages, err := console.New(console.Options{Locker: locker, Redis: rdb})
//	mux.Handle("/ops/", pages) // behind the service's own authentication
//
// It is an [http.Handler] of pages that the server makes: they work without JavaScript, and with it they stay up to
// date. It needs no files beside the program, loads nothing from elsewhere, and can be mounted below any path that ends in a slash, with
// or without [http.StripPrefix].
//
// What needs a person is what [ops.Facts.Findings] finds, as perkey doctor does, of all but Redis's settings and rights.
//
// It changes nothing unless [Options].Changes and Authorize are given. Then each change is a POST that [http.CrossOriginProtection]
// lets through and Authorize allows. It is recorded before it is made, and it carries what its reader saw: if that is no longer so, the
// answer is 409 and nothing is changed.
//
// All readers of a page share what is read from Redis: a hundred cost it what one does, and it is asked nothing while there is none. No page
// but a search by prefix uses SCAN. What Redis does not answer within 1.2 s is shown as it was known last, marked with its age; other
// parts of the page are not affected.
package console
