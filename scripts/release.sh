#!/usr/bin/env bash
# Makes the tags of a release: of the root module, and of the nested modules that users import or install, which then require
# that root. It works in a copy, and builds each nested module there as somebody would who gets it from GitHub.
#
#	scripts/release.sh v0.1.0          # a dry run: checks all, and leaves nothing
#	scripts/release.sh v0.1.0 -push    # and pushes the tags to origin
#
# On main a nested go.mod replaces the root by the folder above. No one can import or install that, so its tag is on a commit of
# its own, which is on no branch.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release: $*" >&2; exit 1; }
version=${1:-}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || fail "usage: scripts/release.sh vX.Y.Z [-push]"
[ -z "${2:-}" ] || [ "$2" = -push ] || fail "unknown argument $2"

root=$(go list -m)
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed"
! git rev-parse -q --verify "refs/tags/$version" >/dev/null || fail "the tag $version exists"
grep -qF "## [${version#v}]" CHANGELOG.md || fail "CHANGELOG.md has no section [${version#v}]"
! grep -n "no release yet" README.md SECURITY.md docs/*.md || fail "this says that there is no release yet"
if [ "${2:-}" = -push ]; then # what CI has tested
	git fetch -q origin main
	[ "$(git rev-parse HEAD)" = "$(git rev-parse FETCH_HEAD)" ] || fail "HEAD is not origin's main"
fi
scripts/api.sh

# Modules that are for tests, benchmarks and examples of this repository are not released.
mapfile -t nested < <(git ls-files '*/go.mod' | xargs -n1 dirname | grep -vE '^bench$|^sim$|^examples/|test$')

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
git clone -q . "$work/repo"
git -C "$work/repo" tag "$version"

# Go finds the root at GitHub's address in the copy, and all else where it is cached or published already.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/repo.insteadOf" GIT_CONFIG_VALUE_0="https://$root"
proxy="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY=$proxy GOPRIVATE=$root GONOSUMDB=* GOVCS="*:git" GOWORK=off
export GOMODCACHE="$work/cache" GOFLAGS=-modcacherw

for module in "${nested[@]}"; do
	echo "release: $module/$version"
	git -C "$work/repo" checkout -q --detach "$version"
	(
		cd "$work/repo/$module"
		go mod edit -dropreplace="$root" -require="$root@$version"
		go mod tidy
		go vet ./...
		if grep -q "^replace" go.mod; then fail "$module replaces something else"; fi
		git commit -qam "$module: $version"
		git tag "$module/$version"
	)
done

# What somebody does who has nothing of it yet.
mkdir "$work/user"
(
	cd "$work/user"
	go mod init example.com/user 2>/dev/null
	for module in "" "${nested[@]/#//}"; do go get "$root$module@$version"; done
	for module in "${nested[@]}"; do
		if [ -f "$work/repo/$module/main.go" ]; then GOBIN="$work/bin" go install "$root/$module@$version"; fi
	done
)

echo "release: $version of the root, $(IFS=,; echo "${nested[*]}"): all build"
if [ "${2:-}" = -push ]; then
	git -C "$work/repo" push "$(git remote get-url origin)" "$version" "${nested[@]/%//$version}"
else
	echo "release: a dry run; nothing was tagged or pushed"
fi
