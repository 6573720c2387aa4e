#!/usr/bin/env bash
# Checks what a user's program links with each package, transitively: the linter
# sees only the imports that a file names.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

module=$(go list -m)
status=0

# deps lists the packages outside the standard library that others link in.
deps() {
	local all
	all=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' "$@")
	sort -u <<<"$all"
}

# links PACKAGE "OURS" MODULE...: PACKAGE links of ours nothing but the folders
# OURS, and else nothing but what the MODULEs link. Of internal, what exists for
# tests stays out.
links() {
	local package=$1 ours=$2 theirs="" all extra
	shift 2
	if ! compgen -G "$package/*.go" >/dev/null; then return; fi
	[ $# = 0 ] || theirs=$(deps "$@")
	all=$(deps "./$package")
	extra=$({
		comm -13 <(echo "$theirs") <(echo "$all") | grep -vE "^$module/(${ours// /|}|$package)(/|\$)"
		grep -E "^$module/internal/test(/|\$)" <<<"$all"
	} || true)
	if [ -n "$extra" ]; then
		echo "deps: $package must not link:"
		sed 's/^/  /; 12q' <<<"$extra"
		status=1
	fi
}

redis=github.com/redis/go-redis/v9
gin=github.com/gin-gonic/gin
echo4=github.com/labstack/echo/v4
echo5=github.com/labstack/echo/v5
yaml=github.com/goccy/go-yaml

links internal/groupcommit "" $redis
links internal/luascript "" $redis
links internal/strictyaml "" $yaml $yaml/ast $yaml/parser $yaml/token
links core/internal/store "core/internal/lifecycle internal" $redis
links core "internal" $redis
links retry "core internal" $redis
links delayqueue/internal/store "core internal" $redis
links delayqueue "core internal" $redis
links idempotency "core internal" $redis
links sqlfence "core internal" $redis
links ops "core delayqueue httplock idempotency internal" $redis
links ops/console "core delayqueue httplock idempotency internal ops" $redis
links httplock "core delayqueue idempotency internal" $redis
links lockclient ""
links ginlock "core delayqueue httplock idempotency internal" $redis $gin
links asynqlock "core internal" $redis github.com/hibiken/asynq
links echolock "core delayqueue echolock/internal httplock idempotency internal" $redis $echo4
links echolock/v5 "core delayqueue echolock/internal httplock idempotency internal" $redis $echo5
links config "core delayqueue httplock idempotency ops retry internal" $redis $yaml $yaml/ast $yaml/parser $yaml/token

[ $status = 0 ] && echo "deps: ok"
exit $status
