#!/usr/bin/env bash
# Runs go test with its arguments and reports (scripts/testreport). A test that fails has failed: nothing runs a second time.
# RACE: flags such as -race; SLOWEST=20 lists the slowest.
set -euo pipefail
cd "$(dirname "$0")/.."

go test ${RACE:-} -count=1 -p=3 -parallel=4 -timeout=12m -json "$@" | go run ./scripts/testreport -slowest="${SLOWEST:-0}"
