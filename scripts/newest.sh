#!/usr/bin/env bash
# Asks for the newest version of every library, in the go.mod of every module: for a run of the tests on them, in a
# tree that is thrown away. go.mod itself asks for the lowest that pass. What the libraries import themselves is what
# they ask for: the newest of that may need a newer Go.
set -euo pipefail
cd "$(dirname "$0")/.."

# The root first: the others ask for what it asks for.
while read -r _ folder; do
	(
		cd "$folder"
		go mod tidy
		mapfile -t libraries < <(go list -m -f '{{if not (or .Main .Indirect .Replace)}}{{.Path}}@upgrade{{end}}' all)
		go get "${libraries[@]}"
		go mod tidy
	)
done < <(git ls-files '*go.mod' | xargs -n1 dirname | awk -F/ '{print ($0 == ".") ? 0 : NF, $0}' | sort -n)
git --no-pager diff --stat
go list -m all | grep -E 'redis/go-redis/v9|gin-gonic/gin |labstack/echo|hibiken/asynq|goccy/go-yaml|testify'
