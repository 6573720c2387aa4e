package idempotency

import "github.com/perkey-go/perkey/internal/luascript"

// Scripts are the sources, by name.
func Scripts() map[string]string {
	return map[string]string{"begin": beginScript.Source(), "finish": finishScript.Source(), "parked": parkedScript.Source(), "forget": forgetScript.Source()}
}

// Break puts other sources in the place of scripts, until restore. No Store may be in use
// meanwhile that is not to be broken.
func Break(name, source string) (restore func()) {
	script := map[string]**luascript.Script{"begin": &beginScript, "finish": &finishScript, "parked": &parkedScript, "forget": &forgetScript}[name]
	was := *script
	*script = luascript.New(source)
	return func() { *script = was }
}
