#!/usr/bin/env bash
# Asks for the newest minor and patch versions of all dependencies, in the go.mod of every module: for a run of
# the tests on them, in a tree that is thrown away. go.mod itself asks for the lowest that pass.
set -euo pipefail
cd "$(dirname "$0")/.."

while read -r file; do
	(cd "$(dirname "$file")" && go get -u -t ./... && go mod tidy)
done < <(git ls-files '*go.mod')
git --no-pager diff --stat
go list -m all | grep -E 'redis/go-redis/v9|gin-gonic/gin |labstack/echo|hibiken/asynq|goccy/go-yaml|testify'
