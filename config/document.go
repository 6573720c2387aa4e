package config

import "time"

// What a file can say. Each field's tag "yaml" is its name, and "want" what it may
// be: a range for durations, numbers and sizes, a choice for words. That what it wants
// is what the other packages take is for the tests to show. A zero field
// was not given; where zero means something the field is a pointer.

type document struct {
	Prefix   string                   `yaml:"prefix"`
	Service  string                   `yaml:"service"`
	Redis    redisSection             `yaml:"redis"`
	Defaults defaultsSection          `yaml:"defaults"`
	Queues   map[string]*queueSection `yaml:"queues"`
	Guards   map[string]*guardSection `yaml:"guards"`
	Routes   map[string]*routeSection `yaml:"routes"`
	Asynq    map[string]*taskSection  `yaml:"asynq"`
}

type redisSection struct {
	URL                secret           `yaml:"url"`
	Mode               string           `yaml:"mode" want:"standalone|sentinel|cluster"`
	Addresses          []string         `yaml:"addresses"`
	DB                 int              `yaml:"db" want:"0..65535"`
	Username           string           `yaml:"username"`
	Password           secret           `yaml:"password"`
	PasswordFile       string           `yaml:"password_file"`
	AllowPlainPassword bool             `yaml:"allow_plain_password"`
	Sentinel           *sentinelSection `yaml:"sentinel"`
	TLS                *tlsSection      `yaml:"tls"`
	PoolSize           int              `yaml:"pool_size" want:"1..100000"`
	MinIdleConns       int              `yaml:"min_idle_conns" want:"0..100000"`
	ConnMaxLifetime    time.Duration    `yaml:"conn_max_lifetime" want:"1s..8784h"`
	PoolTimeout        time.Duration    `yaml:"pool_timeout" want:"1ms..10m"`
	DialTimeout        time.Duration    `yaml:"dial_timeout" want:"1ms..10m"`
	ReadTimeout        time.Duration    `yaml:"read_timeout" want:"1ms..10m"`
	WriteTimeout       time.Duration    `yaml:"write_timeout" want:"1ms..10m"`
	MaxRetries         *int             `yaml:"max_retries" want:"0..100"`
}

type sentinelSection struct {
	Master       string `yaml:"master"`
	Username     string `yaml:"username"`
	Password     secret `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
}

type tlsSection struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	ServerName         string `yaml:"server_name"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// httpSection is what a guard says of HTTP, and what the defaults say for it.
type httpSection struct {
	SafeMethods   string        `yaml:"safe_methods" want:"pass|lock|share"`
	MaxBody       size          `yaml:"max_body" want:"1..64MiB"`
	ReadAhead     size          `yaml:"read_ahead" want:"1..64MiB"`
	BodyTimeout   time.Duration `yaml:"body_timeout" want:"1ms..24h"`
	WaitingBytes  size          `yaml:"max_waiting_bytes" want:"2MiB..1024GiB"`
	MaxWaiters    int           `yaml:"max_waiters_per_principal" want:"1..2147483647"`
	StatusPath    string        `yaml:"status_path"`
	AllowHeaders  []string      `yaml:"allow_headers"`
	Credentials   []string      `yaml:"credential_headers"`
	Principal     string        `yaml:"principal"`
	Anonymous     bool          `yaml:"anonymous"`
	RetryStatuses []int         `yaml:"retry_statuses" want:"400..599"`
}

type defaultsSection struct {
	TTL        time.Duration `yaml:"ttl" want:"100ms..24h"`
	OnConflict chain         `yaml:"on_conflict"`
	HTTP       httpSection   `yaml:",inline"`
}

type queueSection struct {
	MaxAge               time.Duration      `yaml:"max_age" want:"1ms..8784h"`
	MaxDepth             int                `yaml:"max_depth" want:"1..2147483647"`
	MaxDepthPerKey       int                `yaml:"max_depth_per_key" want:"1..2147483647"`
	MaxBytes             size               `yaml:"max_bytes" want:"2MiB..1024GiB"`
	MaxBytesPerKey       size               `yaml:"max_bytes_per_key" want:"2MiB..1024GiB"`
	MaxBytesPerPrincipal size               `yaml:"max_bytes_per_principal" want:"2MiB..1024GiB"`
	MaxPayload           size               `yaml:"max_payload" want:"1..512MiB"`
	MaxResult            size               `yaml:"max_result" want:"1..64MiB"`
	MaxAttempts          int                `yaml:"max_attempts" want:"1..2147483647"`
	Retention            time.Duration      `yaml:"retention" want:"1s..8784h"`
	DeadRetention        time.Duration      `yaml:"dead_retention" want:"1s..8784h"`
	ReservationWindow    *time.Duration     `yaml:"reservation_window" want:"0|100ms..24h"`
	Partitions           int                `yaml:"partitions" want:"1..1024"`
	HaltOnDeath          string             `yaml:"halt_on_death" want:"parked|key"`
	Encryption           *encryptionSection `yaml:"encryption"`
	Worker               workerSection      `yaml:"worker"`
}

type encryptionSection struct {
	Current        string                        `yaml:"current"`
	Keys           map[string]*encryptionKeyFrom `yaml:"keys"`
	AcceptUnsealed bool                          `yaml:"accept_unsealed"`
}

type encryptionKeyFrom struct {
	Env  string `yaml:"env"`
	File string `yaml:"file"`

	value secret // the environment's
}

type workerSection struct {
	Concurrency  int           `yaml:"concurrency" want:"1..10000"`
	ClaimLease   time.Duration `yaml:"claim_lease" want:"100ms..1h"`
	RetryInitial time.Duration `yaml:"retry_initial" want:"1ms..8784h"`
	RetryMax     time.Duration `yaml:"retry_max" want:"1ms..8784h"`
}

// leaseSection is what a guard says of its key, whatever it guards.
type leaseSection struct {
	Key          string           `yaml:"key"`
	FixedKey     bool             `yaml:"fixed_key"`
	TTL          time.Duration    `yaml:"ttl" want:"100ms..24h"`
	FixedLease   time.Duration    `yaml:"fixed_lease" want:"100ms..24h"`
	MaxHold      time.Duration    `yaml:"max_hold" want:"100ms..24h"`
	MinHold      time.Duration    `yaml:"min_hold" want:"100ms..24h"`
	AtOnce       int              `yaml:"at_once" want:"1..1000000"`
	WaitReplicas *replicasSection `yaml:"wait_replicas"`
	OnConflict   chain            `yaml:"on_conflict"`
}

type guardSection struct {
	leaseSection `yaml:",inline"`

	HTTP        httpSection         `yaml:",inline"`
	StreamBody  bool                `yaml:"stream_body"`
	HonorPrefer bool                `yaml:"honor_prefer"`
	Idempotency *idempotencySection `yaml:"idempotency"`
	Skip        string              `yaml:"skip"`
}

// idempotencySection says that the guard looks at Idempotency-Key.
type idempotencySection struct {
	Required    bool          `yaml:"required"`
	TTL         time.Duration `yaml:"ttl" want:"1s..2160h"`
	KeepBody    *size         `yaml:"keep_body" want:"0..64MiB"`
	KeepHeaders []string      `yaml:"keep_headers"`
}

type replicasSection struct {
	Count   int           `yaml:"count" want:"1..100"`
	Timeout time.Duration `yaml:"timeout" want:"1ms..1m"`
}

// routeSection is the name of a guard, or a guard of its own.
type routeSection struct {
	guard string
	own   *guardSection
	where place // of the value; that of its path is the route's
}

// taskSection is the name of a guard, or a guard of its own, for tasks.
type taskSection struct {
	guard string
	own   *leaseSection
	where place // of the value; that of its path is the type's
}

// chain is what happens to a call whose key is held: one policy after the other.
type chain []step

// step is one policy of a chain: a *rejectPolicy, a *retryPolicy or a *delayPolicy.
type step struct {
	path   string
	policy any
}

type rejectPolicy struct {
	Policy string `yaml:"policy" want:"reject"`
}

type retryPolicy struct {
	Policy      string        `yaml:"policy" want:"retry"`
	MaxWait     time.Duration `yaml:"max_wait" want:"1ms..24h"`
	Initial     time.Duration `yaml:"initial" want:"1ms..24h"`
	Max         time.Duration `yaml:"max" want:"1ms..24h"`
	MaxAttempts int           `yaml:"max_attempts" want:"1..2147483647"`
	Jitter      string        `yaml:"jitter" want:"full|decorrelated"`
}

type delayPolicy struct {
	Policy   string        `yaml:"policy" want:"delay"`
	Queue    string        `yaml:"queue"`
	MaxAge   time.Duration `yaml:"max_age" want:"1ms..8784h"`
	Coalesce bool          `yaml:"coalesce"`
	Quiet    time.Duration `yaml:"quiet" want:"1ms..8784h"`
	MaxDelay time.Duration `yaml:"max_delay" want:"1ms..8784h"`
}
