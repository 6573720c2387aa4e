#!/usr/bin/env bash
# Prints which promtool checks the alert rules of deploy/, in one line. Where there is none it installs Debian's
# package, if it may.
#
# PERKEY_REQUIRE_PROMTOOL=1: fails when there is none in the end.
set -euo pipefail

if ! command -v promtool >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "no promtool on PATH: installing Debian's package prometheus" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends prometheus; } >&2 </dev/null || true
fi

if promtool=$(command -v promtool); then
	version=$("$promtool" --version 2>&1 | sed -n 's/.*version \([^ ,+]*\).*/\1/p' | head -1)
	echo "promtool ${version:-of unknown version} ($promtool)"
elif [ "${PERKEY_REQUIRE_PROMTOOL:-}" = 1 ]; then
	echo "no promtool on PATH, and PERKEY_REQUIRE_PROMTOOL=1 asks for one" >&2
	exit 1
else
	echo "no promtool: the alert rules are not checked"
fi
