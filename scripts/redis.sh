#!/usr/bin/env bash
# Prints which Redis the tests will use, in one line. Where there is no
# redis-server it installs Debian's package, if it may. The tests start servers
# of their own, on free ports: one that the package starts is not used.
#
# PERKEY_REQUIRE_REDIS=1: fails when there is none in the end.
set -euo pipefail

if ! command -v redis-server >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "no redis-server on PATH: installing Debian's package" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends redis-server; } >&2 </dev/null || true
fi

if server=$(command -v redis-server); then
	version=$("$server" --version | sed -n 's/.* v=\([^ ]*\).*/\1/p')
	echo "the embedded Redis, and redis-server ${version:-of unknown version} ($server)"
elif [ "${PERKEY_REQUIRE_REDIS:-}" = 1 ]; then
	echo "no redis-server on PATH, and PERKEY_REQUIRE_REDIS=1 asks for one" >&2
	exit 1
else
	echo "the embedded Redis only: there is no redis-server on PATH"
fi
