package idempotency

import "github.com/redis/go-redis/v9"

// Scripts are the sources, by name.
func Scripts() map[string]string {
	return map[string]string{"begin": beginSource, "finish": finishSource, "parked": parkedSource}
}

// Break puts other sources in the place of scripts, until restore. No Store may be in use
// meanwhile that is not to be broken.
func Break(name, source string) (restore func()) {
	script := map[string]**redis.Script{"begin": &beginScript, "finish": &finishScript, "parked": &parkedScript}[name]
	was := *script
	*script = redis.NewScript(source)
	return func() { *script = was }
}
