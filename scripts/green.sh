#!/usr/bin/env bash
# Whether the tests of each package pass RUNS times of RUNS (5), with the race detector (mutants without, as in make test-all), and no
# second try: the last two of the runs beside four busy loops. bin/green.log has a line for each run, so that what is interrupted
# goes on where it was; whoever mends a package removes its lines. What a run that failed printed is in bin/green/.
#
#	scripts/green.sh                # all packages of the main module
#	scripts/green.sh 5 ./core ./ops # these
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-5}
shift $(($# > 0 ? 1 : 0))
log=bin/green.log
mkdir -p bin/green
touch "$log"
mapfile -t packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${@:-./...}" | sed '/^$/d')
module=$(go list -m)
export GORACE="atexit_sleep_ms=10 ${GORACE:-}" GOGC="${GOGC:-400}" GOMEMLIMIT="${GOMEMLIMIT:-1GiB}"

busy=()
start_busy() { for _ in 1 2 3 4; do while :; do :; done & busy+=($!); done; }
end_busy() {
	[ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2>/dev/null || true
	[ ${#busy[@]} = 0 ] || wait "${busy[@]}" 2>/dev/null || true
	busy=()
}
trap end_busy EXIT

# A line of the log: package, run, quiet or busy, ok or FAIL, seconds, the commit, and the tests that failed.
for package in "${packages[@]}"; do
	name=.${package#"$module"}
	for run in $(seq "$runs"); do
		! grep -q "^$name $run " "$log" || continue
		load=quiet
		[ "$run" -le $((runs - 2)) ] || load=busy
		output=bin/green/$(tr -c '[:alnum:]\n' _ <<<"$name")-$run
		began=$SECONDS outcome=ok
		[ $load = quiet ] || start_busy
		go test -race -tags=soak -skip='Mutant|^TestSoak|^TestAccount' -count=1 -parallel=4 -timeout=30m "$package" >"$output" 2>&1 </dev/null || outcome=FAIL
		go test -tags=soak -run=Mutant -count=1 -parallel=4 -timeout=30m "$package" >>"$output" 2>&1 </dev/null || outcome=FAIL
		end_busy
		failed=$(sed -n 's/^--- FAIL: \([^ ]*\).*/\1/p' "$output" | paste -sd, -)
		[ $outcome = FAIL ] || rm "$output"
		echo "$name $run $load $outcome $((SECONDS - began)) $(git rev-parse --short HEAD) $failed" | tee -a "$log"
	done
done

echo
printf '%-40s %-7s %-7s %s\n' package quiet busy 'failed (how often)'
status=0
for package in "${packages[@]}"; do
	name=.${package#"$module"}
	line=$(awk -v name="$name" '
		$1 == name { runs[$3]++; ok[$3] += $4 == "ok"; n = split($7, tests, ","); for (i = 1; i <= n; i++) failed[tests[i]]++ }
		END {
			for (test in failed) list = list " " test " (" failed[test] ")"
			printf "%-40s %-7s %-7s%s", name, ok["quiet"]+0 "/" runs["quiet"]+0, ok["busy"]+0 "/" runs["busy"]+0, list
			exit ok["quiet"] + ok["busy"] != runs["quiet"] + runs["busy"]
		}' "$log") || status=1
	echo "$line"
done
exit $status
