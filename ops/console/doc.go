// Package console is a web console for those who operate services that use perkey: who holds which key, who waits for it,
// what is parked, what died and of what, and which processes there are.
//
//	pages, err := console.New(console.Options{Locker: locker, Redis: rdb})
//	mux.Handle("/ops/", pages) // behind the service's own authentication
//
// It is an [http.Handler] of pages that the server makes: they work without JavaScript, and with it they stay up to
// date. It needs no files beside the program, loads nothing from elsewhere, and can be mounted below any path that ends in a slash, with
// or without [http.StripPrefix].
//
// It changes nothing unless Options.Changes and Options.Authorize are given. Then each change is a POST that [http.CrossOriginProtection]
// lets through and Authorize allows. It is recorded before it is made, and it says what its reader saw: if that is not so any
// more, the answer is 409 and nothing is changed.
//
// All readers share what is read of Redis: a hundred of them cost it what one does, and none costs nothing. No page but a search by
// prefix uses SCAN. What Redis does not tell within 1.2 s is shown as it was known last, marked with its age; other parts of the page
// are not affected.
package console
