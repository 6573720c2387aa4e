#!/usr/bin/env bash
# Runs the tests of the main module but the console's with the race detector, those of some modules beside it, and worlds of the simulation. With "all" as
# the first argument: all tests, those with the build tag soak and mutants too; but no worlds. It says first and last on which servers.
# Further arguments go to `go test` of the main module. SLOWEST=20 lists its twenty slowest tests.
set -euo pipefail
cd "$(dirname "$0")/.."

all=
if [ "${1:-}" = all ]; then
	all=yes
	shift
fi
servers=$(scripts/redis.sh)
if [ $all ]; then
	for tool in databases promtool chromium node; do
		servers+="; $("scripts/$tool.sh")"
	done
fi
echo "test: on $servers"

# The race detector has each process sleep for a second before it ends, and tests start
# hundreds. What may still race then is little: most check that no goroutine is left.
export GORACE="atexit_sleep_ms=10 ${GORACE:-}"

# Most heaps are small here, and collecting them costs a tenth of the processor's time. Large ones stay bounded.
export GOGC="${GOGC:-400}" GOMEMLIMIT="${GOMEMLIMIT:-1GiB}"

test_module() {
	case $1 in
	simulate) cd sim && go run . -seeds 200 -seconds 20 ;;
	*) cd "$1" && go test -vet=all -count=1 -parallel=6 -timeout=15m ./... ;;
	esac
}
test_beside() { (test_module "$1") >"$tmp/${1//\//-}.output" 2>&1 || echo "$1" >>"$tmp/failed"; }

# The modules beside the main one, which have dependencies of their own: two at a time, while the main one is tested.
# Most tests wait most of the time. They yield to the main module's, of which more depend on time. What they print follows.
if [ $all ]; then
	beside=$(git ls-files '*/go.mod' | xargs -n1 dirname)
elif [ $# = 0 ]; then
	beside="examples/shop httplock/openapitest simulate"
else
	beside=
fi
tmp=$(mktemp -d)
export tmp
export -f test_module test_beside
set -m # a process group of their own, so that they end with this script
(
	renice -n 10 -p "$BASHPID" >/dev/null
	xargs -r -n1 -P2 bash -c 'test_beside "$0"' <<<"$beside"
) </dev/null &
others=$!
set +m
trap 'kill -- -$others; rm -rf "$tmp"' EXIT

status=0
# Not from the cache: half of what is tested is not Go. The packages that take longest begin first. Mutants follow without the race
# detector: they show what the checks see. Whoever narrows the run gets just that, with the race detector.
packages=$(go list ./... | if [ $all ]; then cat; else grep -v /console; fi)
test_main() { RACE=-race scripts/gotest.sh "$@" ./delayqueue ./core ./ops ./httplock ./config ./asynqlock $packages; }
test_mutants() {
	git grep -l '^func Test.*Mutant' -- '*_test.go' ':!sqlfence' | xargs -n1 dirname | sort -u | sed 's,^,./,' | NAMED=no xargs scripts/gotest.sh -tags=soak -run=Mutant ./ops ./core
}
if [ $# = 0 ]; then
	{ test_main ${all:+-tags=soak} -skip='Mutant|^TestSoak|^TestAccount' || status=1; [ ! $all ] || test_mutants || status=1; exit $status; } | tee "$tmp/main" || status=1
else
	test_main ${all:+-tags=soak} "$@" | tee "$tmp/main" || status=1
fi
wait "$others"
trap 'rm -rf "$tmp"' EXIT
cat "$tmp"/*.output 2>/dev/null || true
for module in $(cat "$tmp/failed" 2>/dev/null); do
	echo "FAIL $module"
	status=1
done

# What failed of the main module stands far above by now.
[ $status = 0 ] || grep -E '^(--- FAIL|FAIL|panic:|did not end|redistest: g)' "$tmp/main" || true
echo "test: on $servers: $([ $status = 0 ] && echo ok || echo FAILED)"
exit $status
