#!/usr/bin/env bash
# Compiles what users import or install for another platform.
#
#	scripts/platform.sh windows/amd64
set -euo pipefail
cd "$(dirname "$0")/.."

export GOOS=${1%/*} GOARCH=${1#*/} CGO_ENABLED=0
mapfile -t packages < <(go list ./... | grep -vE '/(bench|examples|scripts|internal/docs|internal/test)(/|$)')
go build "${packages[@]}"
while read -r module; do
	(cd "$module" && go build -o /dev/null ./...)
done < <(git ls-files '*/go.mod' | xargs -n1 dirname | grep -vE '^bench$|^sim$|^examples/|test$')
