#!/usr/bin/env bash
# Runs all tests, with the race detector but for those of the modules beside the main one, and says first and last which Redis and which
# databases they used. Arguments go to `go test`. SLOWEST=20 lists the twenty slowest tests.
set -euo pipefail
cd "$(dirname "$0")/.."

redis=$(scripts/redis.sh)
databases=$(scripts/databases.sh)
promtool=$(scripts/promtool.sh)
chromium=$(scripts/chromium.sh)
node=$(scripts/node.sh)
servers="$redis; $databases; $promtool; $chromium; $node"
echo "test: on $servers"

# The race detector has each process sleep for a second before it ends, and tests start
# hundreds. What may still race then is little: most check that no goroutine is left.
export GORACE="atexit_sleep_ms=10 ${GORACE:-}"

status=0
# Not from the cache: half of what is tested is not Go. Most tests wait most of the
# time, so more of them run at a time than there are processors.
# The two packages that take longest begin first.
RACE=-race scripts/gotest.sh "$@" ./core ./delayqueue ./... || status=1
# The benchmarks are a module of their own, and must not rot.
(cd bench && go vet ./... && go test -count=1 -timeout=1m ./...) || { echo "FAIL bench" && status=1; }
# So are the tests of sqlfence, for their drivers. They wait most of the time.
(cd sqlfence/sqltest && go vet ./... && go test -count=1 -parallel=6 -timeout=5m ./...) || { echo "FAIL sqlfence/sqltest" && status=1; }
# And lockprom, for client_golang, with what deploy/ makes of its metrics.
(cd lockprom && go vet ./... && go test -count=1 -timeout=2m ./...) || { echo "FAIL lockprom" && status=1; }
# And lockotel, for OpenTelemetry.
(cd lockotel && go vet ./... && go test -count=1 -timeout=2m ./...) || { echo "FAIL lockotel" && status=1; }
# And cmd/perkey, for its command line.
(cd cmd/perkey && go vet ./... && go test -count=1 -timeout=2m ./...) || { echo "FAIL cmd/perkey" && status=1; }
# And the tests of the demo in a terminal, for its pty.
(cd examples/demo/demotest && go vet ./... && go test -count=1 -timeout=3m ./...) || { echo "FAIL examples/demo/demotest" && status=1; }
# And the tutorial's shop, for its database.
(cd examples/shop && go vet ./... && go test -count=1 -timeout=2m ./...) || { echo "FAIL examples/shop" && status=1; }
# And the tests of the console in a browser, for chromedp.
(cd ops/console/browsertest && go vet ./... && go test -count=1 -timeout=5m ./...) || { echo "FAIL ops/console/browsertest" && status=1; }
# And the test of docs/openapi.yaml, for a validator.
(cd httplock/openapitest && go vet ./... && go test -count=1 -timeout=2m ./...) || { echo "FAIL httplock/openapitest" && status=1; }

echo "test: on $servers: $([ $status = 0 ] && echo ok || echo FAILED)"
exit $status
