#!/usr/bin/env bash
# Records the demo for a minute: docs/demo.cast, which asciinema plays, and docs/demo.svg, for the README.
set -euo pipefail
cd "$(dirname "$0")/../examples/demo/demotest"

go run . -cast ../../../docs/demo.cast -svg ../../../docs/demo.svg
