#!/usr/bin/env bash
# Prints which databases the tests of sqlfence will use, in one line. It installs Debian's
# packages of those that are missing, if it may. The tests start servers of their own, on
# free ports: one that a package starts is not used.
#
# PERKEY_REQUIRE_POSTGRES=1, PERKEY_REQUIRE_MARIADB=1: fails when there is none in the end.
set -euo pipefail
shopt -s nullglob

# find PROGRAM prints its path: Debian does not put all of them on PATH.
find() {
	local all=(/usr/lib/postgresql/*/bin/"$1")
	PATH=$PATH:/usr/sbin command -v "$1" || { [ ${#all[@]} -gt 0 ] && echo "${all[-1]}"; }
}

# database NAME PROGRAM REQUIRED PACKAGE...: installs it, if need be, and prints what there is.
database() {
	local name=$1 program=$2 required=$3 path version
	shift 3
	if ! find "$program" >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
		echo "no $name: installing Debian's package" >&2
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; } >&2 </dev/null || true
	fi
	if path=$(find "$program"); then
		version=$("$path" --version | grep -oE '[0-9]+(\.[0-9]+)+' | head -1)
		echo "$name ${version:-of unknown version} ($path)"
	elif [ "$required" = 1 ]; then
		echo "there is no $name, and PERKEY_REQUIRE_${name^^}=1 asks for one" >&2
		return 1
	else
		echo "no $name"
	fi
}

postgres=$(database Postgres postgres "${PERKEY_REQUIRE_POSTGRES:-}" postgresql)
mariadb=$(database MariaDB mariadbd "${PERKEY_REQUIRE_MARIADB:-}" mariadb-server-core mariadb-client-core)
echo "SQLite, $postgres, $mariadb"
