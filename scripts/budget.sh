#!/usr/bin/env bash
# Measures how much there is of this repository, and fails if it is more than docs/development.md, "The budget", allows.
set -euo pipefail
cd "$(dirname "$0")/.."
exec go run ./scripts/budget
