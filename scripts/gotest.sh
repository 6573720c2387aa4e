#!/usr/bin/env bash
# Runs go test with its arguments and reports (scripts/testreport). A test that fails has failed: nothing runs a second time.
# RACE: flags such as -race; SLOWEST=20 lists the slowest; NAMED=no: those that run on a real Redis do not say so in their names.
set -euo pipefail
cd "$(dirname "$0")/.."

go test ${RACE:-} -count=1 -p=3 -parallel=4 -timeout=12m -json "$@" | ${NAMED:+env PERKEY_REQUIRE_REDIS=} go run ./scripts/testreport -slowest="${SLOWEST:-0}"
