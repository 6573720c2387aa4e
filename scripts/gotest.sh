#!/usr/bin/env bash
# Runs go test with its arguments and reports (scripts/testreport). A test that fails among the others runs again
# alone, as others take a test's time on a busy machine: one that fails there too has failed.
# RACE: flags for both runs, such as -race; SLOWEST=20 lists the slowest.
set -euo pipefail
cd "$(dirname "$0")/.."

again=$(mktemp)
trap 'rm -f "$again"' EXIT
status=0
go test ${RACE:-} -count=1 -p=3 -parallel=4 -timeout=12m -json "$@" | go run ./scripts/testreport -slowest="${SLOWEST:-0}" -again="$again" || status=1
if [ -s "$again" ]; then
	status=0
	while read -r package test; do
		echo "test: $test of $package failed among the others; alone:"
		go test ${RACE:-} -count=1 -timeout=5m -run "^$test\$" "$package" </dev/null || status=1
	done <"$again"
fi
exit $status
