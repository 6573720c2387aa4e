package conformance

// behaviours is the suite. Names are those of subtests: no slashes.
var behaviours = []behaviour{
	{name: "runs under its lease", test: runsUnderItsLease},
	{name: "one at a time", test: oneAtATime},
	{name: "request restored", test: requestRestored},
	{name: "refuses with 409", test: refuses},
	{name: "refusals are the same bytes", test: sameBytes},
	{name: "names the route", test: namesTheRoute},
	{name: "503 without Redis", test: unavailable},
	{name: "key functions see the route", test: keyHelpers},
	{name: "key errors", test: keyErrors},
	{name: "misconfigured refuses all", test: misconfigured},

	{name: "waits", test: waits},
	{name: "body is whole after waiting", test: bodyAfterWaiting},
	{name: "body replaced by the key function", test: bodyReplaced},
	{name: "client gone while waiting", test: goneWhileWaiting},
	{name: "client gone mid-handler", test: goneMidHandler},

	{name: "parks and replays", test: parksAndReplays},
	{name: "parked requests run once and alone", test: parkedRunOnce},
	{name: "body over the cap is not parked", test: overTheCap},
	{name: "failed replays are tried again", test: failedReplays},
	{name: "forbidden replay never runs", test: forbiddenReplay},

	{name: "Prefer: wait", test: prefersWait},
	{name: "Prefer: respond-async", test: prefersAsync},
	{name: "Prefer is the handler's", test: preferIsTheHandlers},

	{name: "Idempotency-Key: runs once", test: madeTwice},
	{name: "Idempotency-Key: handler's error", needs: HandlerErrors, test: errorsStored},
	{name: "Idempotency-Key: failures run again", test: failuresRunAgain},
	{name: "Idempotency-Key: another payload", test: otherPayload},
	{name: "Idempotency-Key: in progress", test: inProgress},
	{name: "Idempotency-Key: missing", test: keyMissing},
	{name: "Idempotency-Key: a stream is not kept", test: streamsNotStored},
	{name: "Idempotency-Key: a hijacked connection is not kept", test: hijackedNotStored},
	{name: "Idempotency-Key: an inner conflict is not kept", test: innerNotStored},
	{name: "Idempotency-Key: parked once", test: parkedOnce},
	{name: "Idempotency-Key: writer restored", test: writerRestored},

	{name: "lost lease", test: lostLease},
	{name: "lost lease after the response was begun", test: lostLeaseBegun},
	{name: "panic, recovery outside", test: recoveryOutside},
	{name: "panic, recovery inside", test: recoveryInside},
	{name: "panic, no recovery", test: noRecovery},
	{name: "panic of the key function", test: panicOfKey},

	{name: "inner conflict is the inner guard's", test: innerConflict},
	{name: "same key passes without Redis", test: reentry},
	{name: "handler's error is the framework's", needs: HandlerErrors, test: handlerError},

	{name: "Flush", test: flushes},
	{name: "Hijack", test: hijacks},
	{name: "ResponseController", test: responseController},
	{name: "SSE for longer than the lease", test: streamsEvents},
	{name: "uploaded files are removed", test: uploads},

	{name: "safe methods pass", test: safeMethodsPass},
	{name: "LockSafeMethods", test: safeMethodsLocked},
	{name: "SharedForSafeMethods", test: safeMethodsShared},
	{name: "Skip", test: skips},
	{name: "unmatched routes, guarded routes", test: unmatchedBesideGuarded},
	{name: "unmatched routes, guarded engine", needs: EngineWide, test: unmatchedEngine},
}
