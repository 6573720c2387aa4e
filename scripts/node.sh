#!/usr/bin/env bash
# Prints which Node.js and which TypeScript compiler test examples/client-ts, in one line. Where they are missing it
# installs Debian's packages, if it may.
#
# PERKEY_REQUIRE_NODE=1: fails when one is missing in the end.
set -euo pipefail

missing=()
command -v node >/dev/null || missing+=(nodejs)
command -v tsc >/dev/null || missing+=(node-typescript)
if [ ${#missing[@]} -gt 0 ] && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "not on PATH: installing Debian's ${missing[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } >&2 </dev/null || true
fi

if node=$(command -v node) && tsc=$(command -v tsc); then
	echo "Node.js $("$node" --version) ($node), TypeScript $("$tsc" --version | sed 's/.* //') ($tsc)"
elif [ "${PERKEY_REQUIRE_NODE:-}" = 1 ]; then
	echo "no node or no tsc on PATH, and PERKEY_REQUIRE_NODE=1 asks for both" >&2
	exit 1
else
	echo "no node or no tsc: the client in TypeScript is not tested"
fi
