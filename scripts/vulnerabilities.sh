#!/usr/bin/env bash
# Looks in what users import or install for calls of what has a known weakness, by the database of vuln.go.dev. The
# weaknesses of Go itself are those of the Go that runs this.
set -uo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
GOBIN=$folder go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 || exit
status=0
while read -r module; do
	echo "# $module"
	(cd "$module" && "$folder/govulncheck" "$@" ./...) || status=1
done < <(git ls-files '*go.mod' | xargs -n1 dirname | grep -vE '^bench$|^sim$|^examples/|test$')
exit $status
