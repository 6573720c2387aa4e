#!/usr/bin/env bash
# Prints which PostgreSQL the tests of sqlfence will use, in one line. Where there is none it
# installs Debian's package, if it may. The tests start a server of their own, on a
# free port: one that the package starts is not used.
#
# PERKEY_REQUIRE_POSTGRES=1: fails when there is none in the end.
set -euo pipefail
shopt -s nullglob

# find prints the newest server: Debian does not put it on PATH.
find() {
	local all=(/usr/lib/postgresql/*/bin/postgres)
	command -v postgres || { [ ${#all[@]} -gt 0 ] && echo "${all[-1]}"; }
}

if ! find >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "no PostgreSQL: installing Debian's package" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends postgresql; } >&2 </dev/null || true
fi

if server=$(find); then
	version=$("$server" --version | awk '{ print $3 }')
	echo "PostgreSQL ${version:-of unknown version} ($server)"
elif [ "${PERKEY_REQUIRE_POSTGRES:-}" = 1 ]; then
	echo "there is no PostgreSQL, and PERKEY_REQUIRE_POSTGRES=1 asks for one" >&2
	exit 1
else
	echo "no PostgreSQL"
fi
