#!/usr/bin/env bash
# Prints which browser tests the console, in one line. Where there is none it installs Debian's
# chromium-headless-shell, if it may.
#
# PERKEY_REQUIRE_CHROMIUM=1: fails when there is none in the end.
set -euo pipefail

if ! command -v chromium-headless-shell >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "no chromium-headless-shell on PATH: installing Debian's package" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends chromium-headless-shell; } >&2 </dev/null || true
fi

if shell=$(command -v chromium-headless-shell); then
	version=$("$shell" --version 2>/dev/null | sed -n 's/.* \([0-9][0-9.]*\).*/\1/p' | head -1)
	echo "chromium-headless-shell ${version:-of unknown version} ($shell)"
elif [ "${PERKEY_REQUIRE_CHROMIUM:-}" = 1 ]; then
	echo "no chromium-headless-shell on PATH, and PERKEY_REQUIRE_CHROMIUM=1 asks for one" >&2
	exit 1
else
	echo "no chromium-headless-shell: the console is not tested in a browser"
fi
