// Package config builds locks, queues, guards and the guards of routes from a YAML file,
// so that each route's policy can be changed without a new build.
//
//	redis: {url: rediss://shop@redis.internal, password_file: secrets/redis}
//	queues:
//	  ship: {max_age: 15m}
//	guards:
//	  pay:  {key: "order:{param.id|int}"}
//	  cart: {key: "cart:{param.id}", on_conflict: {policy: retry, max_wait: 2s}}
//	  ship: {key: "order:{param.id|int}", principal: users, on_conflict: [{policy: retry, max_wait: 300ms}, {policy: delay, queue: ship}]}
//	routes:
//	  POST /orders/:id/pay: pay
//	  PUT /carts/:id: cart
//	  POST /orders/:id/ship: ship
//
//	f, err := config.Load("perkey.yaml")
//	rt, err := config.Build(f, config.WithPrincipal("users", user, mayStill)) // who sends a request, for what is parked
//	r.Use(ginlock.FromConfig(rt)) // or that of httplock or echolock
//	mux.Use(asynqlock.FromConfig(rt)) // for asynq's tasks, by the section asynq
//
// docs/config.md has every field. Schema is the same for editors.
//
// # Files
//
// Load reports all mistakes of a file at once, each with its line, column and path, and
// what would be right: unknown fields and names, duplicates, values out of range, a key
// that reads a parameter which its route does not have, or that is the same for all
// requests, requests that are parked or remembered without a principal, a policy after
// reject. Nothing is guessed: durations have units, numbers no quotes, and there are no
// anchors, aliases or tags.
//
// Functions are given to Build by name: WithPrincipal, WithSkip and WithValue. Build reports a name
// that only the file has.
//
// In prefix and in the section redis, ${NAME} stands for an environment variable, so that no
// password need be in the file; a password in the file must be allowed by allow_plain_password.
// Paths in the file are relative to its directory. Files with passwords and certificates for Redis
// are read again for each new connection.
//
// No Problem shows a value of the sections redis and encryption, or, from any section, something
// that looks like an encryption key or a URL with a password. Network errors contain addresses, but
// never a password.
//
// A file need not be trusted: one that would take long to read, or much memory, is refused first.
//
// # Reloading
//
// Runtime.Reload puts another file into force, and Runtime.Watch does so when the file has
// changed. Requests that are under way keep their guard; the next request of each route
// has the new one. A file with a mistake changes nothing. A change that needs a restart is
// refused, with its line; see Reload.
//
// While two files have different keys for one route, an old request and a new one may
// run at the same time: they hold different keys.
package config
