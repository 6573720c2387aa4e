package config

import (
	"time"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// What a file can say: package strictyaml reads it by the tags. The comments of types and fields, and the tags
// "pattern" of texts and "names" of the names in mappings, are those of schema.json, which go generate makes of them.
// That the ranges are those of the other packages is for the tests to show. A zero field was not given; where zero
// means something the field is a pointer.

//go:generate go test -run TestSchema_IsMadeOfTheStructs . -update

// Locks, queues, guards and routes of a service that uses perkey.
type document struct {
	// What the names of all keys and channels in Redis begin with. It may be ${NAME}. Default: perkey.
	Prefix string `yaml:"prefix,env" pattern:"^[^\\s{}]{1,64}$"`
	// The name of the service that the queues belong to: a process of another service that uses one is refused. Default: none.
	Service string `yaml:"service" pattern:"^[A-Za-z0-9._-]{1,64}$"`
	// Which Redis. Each text may have ${NAME} in it, for an environment variable.
	Redis redisSection `yaml:"redis,env"`
	// Counts what this process does, and reports it to operators: see ops.StartBeacon. An empty section, {}, is enough. Default: neither.
	Ops *opsSection `yaml:"ops"`
	// What holds for all guards that do not say otherwise.
	Defaults defaultsSection `yaml:"defaults"`
	// What holds for all guards that look at Idempotency-Key.
	Idempotency recordsSection `yaml:"idempotency"`
	// Delay queues, by name.
	Queues map[string]*queueSection `yaml:"queues" names:"^[A-Za-z0-9._-]{1,64}$"`
	// Guards, by name.
	Guards map[string]*guardSection `yaml:"guards" names:"."`
	// Which guard a route has, by its method and pattern, such as POST /orders/:id or POST /orders/{id}: a guard's name, or a guard.
	Routes map[string]*routeSection `yaml:"routes" names:"^(GET|HEAD|POST|PUT|PATCH|DELETE|CONNECT|OPTIONS|TRACE|QUERY|PROPFIND|REPORT|SEARCH) +/[^\\s]*$"`
	// Routes, and types of tasks, that are meant to have no guard of their own any more: each as routes or asynq had it. A
	// reload that takes the guard from others is refused. One that has a guard too is a mistake. Each start logs them. Default: none.
	Unguard []string `yaml:"unguard"`
	// Which guard asynq's tasks have, by their type, or by the beginning of types followed by *, such as report:*: a guard's name, or a guard.
	Asynq map[string]*taskSection `yaml:"asynq" names:"^[^*]*\\S[^*]*\\*?$|^\\*$"`
}

type redisSection struct {
	// redis://[user[:password]@]host[:port][/db], or rediss:// for TLS. Excludes addresses.
	URL strictyaml.Secret `yaml:"url" excludes:"addresses"`
	// Default: standalone.
	Mode string `yaml:"mode" oneof:"standalone|sentinel|cluster"`
	// host:port: one in mode standalone, which may also be the path of a socket; the sentinels' in mode sentinel; some nodes' in mode cluster.
	Addresses []string `yaml:"addresses"`
	// The database's number. Default: 0.
	DB int `yaml:"db" range:"0..65535"`
	// The ACL user.
	Username string `yaml:"username"`
	// Its password, as ${NAME}.
	Password strictyaml.Secret `yaml:"password"`
	// A file that holds its password. It is read again for each new connection.
	PasswordFile string `yaml:"password_file"`
	// Lets passwords stand in this file as they are. Default: false.
	AllowPlainPassword bool `yaml:"allow_plain_password"`
	// For mode sentinel.
	Sentinel *sentinelSection `yaml:"sentinel"`
	// TLS, from version 1.2. An empty section, {}, uses the system's certificates.
	TLS *tlsSection `yaml:"tls"`
	// The most connections, to each node. Default: go-redis's.
	PoolSize int `yaml:"pool_size" range:"1..100000"`
	// How many connections stay open. Default: 0.
	MinIdleConns int `yaml:"min_idle_conns" range:"0..100000"`
	// How long a connection is used before another one replaces it. Default: for as long as it lasts.
	ConnMaxLifetime time.Duration `yaml:"conn_max_lifetime" range:"1s..8784h"`
	// How long a command waits for a connection. Default: go-redis's.
	PoolTimeout time.Duration `yaml:"pool_timeout" range:"1ms..10m"`
	// How long to connect may take. Default: go-redis's.
	DialTimeout time.Duration `yaml:"dial_timeout" range:"1ms..10m"`
	// How long an answer may take. Default: go-redis's.
	ReadTimeout time.Duration `yaml:"read_timeout" range:"1ms..10m"`
	// How long to send may take. Default: go-redis's.
	WriteTimeout time.Duration `yaml:"write_timeout" range:"1ms..10m"`
	// How often a command is tried again. Default: go-redis's.
	MaxRetries *int `yaml:"max_retries" range:"0..100"`
}

type sentinelSection struct {
	// The name of the master.
	Master string `yaml:"master"`
	// The sentinels' ACL user.
	Username string `yaml:"username"`
	// Its password, as ${NAME}.
	Password strictyaml.Secret `yaml:"password"`
	// A file that holds its password. It is read again for each new connection.
	PasswordFile string `yaml:"password_file"`
}

type tlsSection struct {
	// Certificates of the authorities to trust, as PEM. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// The client's certificate, as PEM. Together with key_file.
	CertFile string `yaml:"cert_file"`
	// Its key, as PEM.
	KeyFile string `yaml:"key_file"`
	// The name in the server's certificate. Default: that of the address.
	ServerName string `yaml:"server_name"`
	// Does not check the server's certificate: each start warns. Default: false.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`
}

type opsSection struct {
	// How often the process reports to Redis what it does. A process that was killed is known for three and a half times as long. Default: 10s.
	Interval time.Duration `yaml:"interval" range:"100ms..1m"`
}

// httpSection is what a guard says of HTTP, and what the defaults say for it.
type httpSection struct {
	// What GET and HEAD need: nothing (pass), the key (lock), or the key together with one another (share). Default: pass.
	SafeMethods string `yaml:"safe_methods" oneof:"pass|lock|share"`
	// The longest body, in bytes, of a request that may wait or be parked, which is read before its key is asked for. Default: 1MiB.
	MaxBody strictyaml.Size `yaml:"max_body" range:"1..64MiB"`
	// How many bytes of a body are read before the key is asked for where on_conflict is reject alone, or the body is longer
	// than max_body. Default: 64KiB.
	ReadAhead strictyaml.Size `yaml:"read_ahead" range:"1..64MiB"`
	// How long clients may keep the service waiting for a body. 408 before the key; a handler that reads a longer body meets
	// an error. Default: 30s.
	BodyTimeout time.Duration `yaml:"body_timeout" range:"1ms..24h"`
	// What the bodies of all requests of a process that have not got their key yet may take up, as far as this route is
	// concerned: more than max_body and read_ahead. Beyond it a request with a body is answered with 503. Default: 256MiB.
	WaitingBytes strictyaml.Size `yaml:"max_waiting_bytes" range:"2MiB..1024GiB"`
	// How many requests of one principal may be in front of their keys at a time, behind one guard and in a process: the
	// routes of a named guard are counted together. A reload begins to count anew. One more is answered with 429. It needs a
	// principal. Default: no bound.
	MaxWaiters int `yaml:"max_waiters_per_principal" range:"1..2147483647"`
	// Where httplock.TicketHandler is mounted, such as /tickets/. A 202 links there. Default: no link.
	StatusPath string `yaml:"status_path" pattern:"/$"`
	// Request headers that are stored with a parked request, besides Accept, Accept-Language, Content-Encoding, Content-Type,
	// Idempotency-Key, Traceparent and If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since. A guard's are
	// added to the defaults'.
	AllowHeaders []string `yaml:"allow_headers"`
	// Request headers that carry credentials, besides Authorization, Cookie, X-Api-Key and others in common use. They are
	// never stored, and requests that have them are parked, or remembered under their Idempotency-Key, only with a principal.
	// A guard's are added to the defaults'.
	Credentials []string `yaml:"credential_headers"`
	// The name under which config.WithPrincipal gave Build the functions that say who sends a request: on whose behalf it is
	// parked, whose its Idempotency-Key is, and whose requests max_waiters_per_principal counts. A guard that parks, or has
	// idempotency, needs it, or anonymous.
	Principal string `yaml:"principal"`
	// It does not matter who sends a request: it is parked without its credentials, and runs on nobody's behalf, and all
	// clients share their Idempotency-Keys. Excludes principal.
	Anonymous bool `yaml:"anonymous" excludes:"principal"`
	// Statuses after which a parked request is tried again until it is too old, besides 429 and 503. Others are results. A
	// guard's are added to the defaults'.
	RetryStatuses []int `yaml:"retry_statuses" range:"400..599"`
}

type defaultsSection struct {
	// How long a key stays held after its holder's process died. Default: 15s.
	TTL time.Duration `yaml:"ttl" range:"100ms..24h"`
	// What happens to a request whose key is held. Default: reject.
	OnConflict chain       `yaml:"on_conflict"`
	HTTP       httpSection `yaml:",inline"`
}

type queueSection struct {
	// How long after its arrival a request may be started. Default: 15m.
	MaxAge time.Duration `yaml:"max_age" range:"1ms..8784h"`
	// How many requests may be queued or running, in each partition. Default: 100000, on a Cluster 3000.
	MaxDepth int `yaml:"max_depth" range:"1..2147483647"`
	// How many of one key. Default: 1000.
	MaxDepthPerKey int `yaml:"max_depth_per_key" range:"1..2147483647"`
	// How much memory of Redis each partition may take, what has ended included. Default: 64MiB, or four of the largest
	// payloads if that is more.
	MaxBytes strictyaml.Size `yaml:"max_bytes" range:"2MiB..1024GiB"`
	// How much the requests of one key may take that are queued or running. Default: a quarter of max_bytes.
	MaxBytesPerKey strictyaml.Size `yaml:"max_bytes_per_key" range:"2MiB..1024GiB"`
	// How much those of one principal may take. Default: a quarter of max_bytes.
	MaxBytesPerPrincipal strictyaml.Size `yaml:"max_bytes_per_principal" range:"2MiB..1024GiB"`
	// The largest payload. Default: 1MiB and 64KiB.
	MaxPayload strictyaml.Size `yaml:"max_payload" range:"1..512MiB"`
	// The largest result. Default: 68KiB.
	MaxResult strictyaml.Size `yaml:"max_result" range:"1..64MiB"`
	// How often a request is tried before it becomes a dead letter. Default: 5.
	MaxAttempts int `yaml:"max_attempts" range:"1..2147483647"`
	// How long the state of what has ended is remembered: more than two claim leases. Default: 1h.
	Retention time.Duration `yaml:"retention" range:"1s..8784h"`
	// How long dead letters are kept. Default: 168h.
	DeadRetention time.Duration `yaml:"dead_retention" range:"1s..8784h"`
	// For how long a key stays reserved for its parked requests. Default: 1m.
	ReservationWindow *time.Duration `yaml:"reservation_window" range:"0|100ms..24h"`
	// Into how many parts the queue is split. That never changes: a queue with another number is refused. Default: that of the queue; for a new one 1, on a Cluster 16.
	Partitions int `yaml:"partitions" range:"1..1024"`
	// What a dead letter halts until it is redriven or purged: the parked requests of its key, or the key. Default: nothing.
	HaltOnDeath string `yaml:"halt_on_death" oneof:"parked|key"`
	// Payloads, results and causes are sealed with AES-256-GCM.
	Encryption *encryptionSection `yaml:"encryption,private"`
	// What Runtime.Worker gives a worker of this queue.
	Worker workerSection `yaml:"worker"`
}

type recordsSection struct {
	// Responses that are kept are sealed with AES-256-GCM.
	Encryption *encryptionSection `yaml:"encryption,private"`
}

type encryptionSection struct {
	// The id of the key that seals. With accept_unsealed it may be left out: nothing is sealed yet.
	Current string `yaml:"current"`
	// Where keys are, by their ids: each is 32 random bytes in base64.
	Keys map[string]*encryptionKeyFrom `yaml:"keys,required" names:"^[A-Za-z0-9._-]{1,32}$"`
	// What was stored without encryption is used too. Default: false.
	AcceptUnsealed bool `yaml:"accept_unsealed"`
}

type encryptionKeyFrom struct {
	// An environment variable that holds it.
	Env string `yaml:"env" excludes:"file"`
	// A file that holds it.
	File string `yaml:"file"`

	value strictyaml.Secret // the environment's
}

type workerSection struct {
	// How many requests it runs at once. Default: 8.
	Concurrency int `yaml:"concurrency" range:"1..10000"`
	// How long after a worker's death its requests are run again. Default: 30s.
	ClaimLease time.Duration `yaml:"claim_lease" range:"100ms..1h"`
	// The delay after the first failed attempt, which doubles. Default: 1s.
	RetryInitial time.Duration `yaml:"retry_initial" range:"1ms..8784h"`
	// The longest such delay. Default: 1m.
	RetryMax time.Duration `yaml:"retry_max" range:"1ms..8784h"`
}

// leaseSection is what a guard says of its key, whatever it guards.
type leaseSection struct {
	// What a request or a task must have for itself: a template such as order:{param.id}, or wallet:{json.user_id} for tasks.
	// Routes and tasks need it.
	Key string `yaml:"key"`
	// The key has no value in it: one that all requests of the guard, or all tasks of the type, share. Default: false: such a
	// key is refused.
	FixedKey bool `yaml:"fixed_key"`
	// How long the key stays held after its holder's process died. Default: that of defaults.
	TTL time.Duration `yaml:"ttl" range:"100ms..24h"`
	// Instead of ttl: the lease is not renewed, and ends so long after its grant.
	FixedLease time.Duration `yaml:"fixed_lease" range:"100ms..24h" excludes:"ttl,max_hold"`
	// The lease is renewed no longer than this. Default: no bound.
	MaxHold time.Duration `yaml:"max_hold" range:"100ms..24h"`
	// The key stays held so long after the grant, even when it is released earlier.
	MinHold time.Duration `yaml:"min_hold" range:"100ms..24h"`
	// How many may hold a key at the same time. Default: 1.
	AtOnce int `yaml:"at_once" range:"1..1000000"`
	// A grant counts only when so many replicas have it.
	WaitReplicas *replicasSection `yaml:"wait_replicas"`
	// What happens to a request whose key is held. A task with reject comes back when the key is released; with retry it waits
	// in its worker before. Default: that of defaults.
	OnConflict chain `yaml:"on_conflict"`
}

// Who may run, and what happens to others.
type guardSection struct {
	leaseSection `yaml:",inline"`

	HTTP httpSection `yaml:",inline"`
	// Bodies are left to the handler, which reads them under its key for as long as it likes. Such requests are not parked.
	// Default: false.
	StreamBody bool `yaml:"stream_body"`
	// Clients may choose with the header Prefer among what on_conflict would do anyway. Default: false.
	HonorPrefer bool `yaml:"honor_prefer"`
	// A request that is made again under the same Idempotency-Key has the first one's response, and is not run again.
	Idempotency *idempotencySection `yaml:"idempotency"`
	// The name under which config.WithSkip gave Build a function. Requests for which it is true need no key.
	Skip string `yaml:"skip"`
}

// idempotencySection says that the guard looks at Idempotency-Key.
type idempotencySection struct {
	// Requests without Idempotency-Key are refused with 400. Default: false.
	Required bool `yaml:"required"`
	// How long a response is remembered. Default: 24h.
	TTL time.Duration `yaml:"ttl" range:"1s..2160h"`
	// The longest body, in bytes, of a response that is kept. Default: 64KiB.
	KeepBody *strictyaml.Size `yaml:"keep_body" range:"0..64MiB"`
	// Response headers that are kept, besides those of parked requests' results.
	KeepHeaders []string `yaml:"keep_headers"`
}

type replicasSection struct {
	// How many replicas.
	Count int `yaml:"count,required" range:"1..100"`
	// How long to wait for them.
	Timeout time.Duration `yaml:"timeout,required" range:"1ms..1m"`
}

// named is the name of a guard, or a guard of its own.
type named[T any] struct {
	guard string
	own   *T
	where strictyaml.Place // of the value; that of its path is the route's or the type's
}

type (
	routeSection = named[guardSection]
	taskSection  = named[leaseSection]
)

// chain is what happens to a call whose key is held: one policy after the other.
type chain []step

// step is one policy of a chain: a *rejectPolicy, a *retryPolicy or a *delayPolicy.
type step struct {
	path   string
	policy any
}

// 409.
type rejectPolicy struct {
	// Which policy it is.
	Policy string `yaml:"policy,required" oneof:"reject"`
}

// Waits, and asks again.
type retryPolicy struct {
	// Which policy it is.
	Policy string `yaml:"policy,required" oneof:"retry"`
	// How long in all. Default: 2s.
	MaxWait time.Duration `yaml:"max_wait" range:"1ms..24h"`
	// The first delay. Default: 20ms.
	Initial time.Duration `yaml:"initial" range:"1ms..24h"`
	// The longest delay. Default: 500ms.
	Max time.Duration `yaml:"max" range:"1ms..24h"`
	// How often the key is asked for. Default: as often as max_wait allows.
	MaxAttempts int `yaml:"max_attempts" range:"1..2147483647"`
	// How delays are spread. Default: full.
	Jitter string `yaml:"jitter" oneof:"full|decorrelated"`
}

// 202: the request is parked in a queue, and run later.
type delayPolicy struct {
	// Which policy it is.
	Policy string `yaml:"policy,required" oneof:"delay"`
	// One of those under queues.
	Queue string `yaml:"queue,required"`
	// How long after its arrival the request may be started. Default: the queue's.
	MaxAge time.Duration `yaml:"max_age" range:"1ms..8784h"`
	// Only the latest request of each key, route and principal stays parked. Default: false.
	Coalesce bool `yaml:"coalesce"`
	// With coalesce: how long a parked request waits for newer ones. Needs max_delay.
	QuietPeriod time.Duration `yaml:"quiet_period" range:"1ms..8784h"`
	// With quiet_period: how long newer requests can put it off.
	MaxDelay time.Duration `yaml:"max_delay" range:"1ms..8784h"`
}
