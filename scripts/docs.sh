#!/usr/bin/env bash
# Builds the static site of README.md, CHANGELOG.md and docs/ in bin/site, and checks its links. Where there is no mkdocs it
# installs Debian's mkdocs and mkdocs-material, if it may. To read it: python3 -m http.server -d bin/site
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v mkdocs >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
	echo "no mkdocs on PATH: installing Debian's packages" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -q && apt-get install -q -y --no-install-recommends mkdocs mkdocs-material; } >&2 </dev/null
fi

# The pages are where they are in the repository, so that links between them are the same there and on GitHub.
PERKEY_DOCS=$(mktemp -d)
export PERKEY_DOCS
trap 'rm -rf "$PERKEY_DOCS"' EXIT
ln -s "$PWD"/{README.md,CHANGELOG.md,docs,scripts/docs.css} "$PERKEY_DOCS"
mkdocs build --quiet
