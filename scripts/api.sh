#!/usr/bin/env bash
# Compares the public API of every module that is released with that of the last tag, by apidiff, and prints what is not
# compatible. Before v1 that may be, if CHANGELOG.md names it since that tag; from v1 on it may not.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=v0.0.0-20261014143641-f0251eb4aa3e # of golang.org/x/exp
apidiff=$PWD/bin/apidiff-$VERSION
diff() { "$apidiff" -m "$@" 2> >(grep -v '^Ignoring internal package' >&2); }

tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
	echo "api: there is no tag yet, and nothing to compare with"
	exit 0
}
if [ ! -x "$apidiff" ]; then
	GOBIN=$PWD/bin go install "golang.org/x/exp/cmd/apidiff@$VERSION"
	mv bin/apidiff "$apidiff"
fi

old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive --prefix=tree/ "$tag" | tar -x -C "$old"

# What users cannot import is not compared: package main, internal, and the modules of tests and benchmarks.
incompatible=
while read -r module; do
	if [ ! -f "$old/tree/$module/go.mod" ]; then
		echo "api: $module: new since $tag"
		continue
	fi
	path=$(cd "$module" && go list -m)
	(cd "$old/tree/$module" && diff -w "$old/export" "$path")
	found=$(cd "$module" && diff -incompatible "$old/export" "$path")
	if found=$(grep '^- ' <<<"$found"); then
		echo "api: $path: not compatible with $tag:"
		echo "$found"
		incompatible+=$found$'\n'
	fi
done < <(git ls-files '*go.mod' | xargs -n1 dirname | grep -vE '^bench$|^sim$|^cmd/|^examples/|test$')

if [ -z "$incompatible" ]; then
	echo "api: compatible with $tag"
	exit 0
fi
if [[ $tag != v0.* ]]; then
	echo "api: $tag promises that programs go on compiling" >&2
	exit 1
fi
status=0
since=$(sed "/^## \[${tag#v}\]/,\$d" CHANGELOG.md)
while read -r name; do
	if ! grep -qwF -- "$name" <<<"$since"; then
		echo "api: CHANGELOG.md does not name $name since $tag" >&2
		status=1
	fi
done < <(sed -nE 's/^- ([^:]*).*/\1/; s/.*[./]//; /./p' <<<"$incompatible" | sort -u)
exit $status
