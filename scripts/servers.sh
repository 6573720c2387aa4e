#!/usr/bin/env bash
# Runs the tests that need a Redis on another server: the newest redis-server or valkey-server of Debian sid, which it
# unpacks into bin/ and does not install, or those in a folder: redis-server and redis-cli, or Valkey's of those names.
# Further arguments go to `go test`.
#
#	scripts/servers.sh valkey
#	scripts/servers.sh redis -run Lease
#	scripts/servers.sh /opt/redis-6.2/bin
set -euo pipefail
cd "$(dirname "$0")/.."

# get NAME FOLDER unpacks Debian sid's NAME-server and NAME-cli and the libraries that they need. They run on those, so that
# it does not matter how old this system's are.
get() {
	local name=$1 folder=$2 mirror apt loader program package packages=("$1-server" "$1-tools") libraries=("$1-tools")
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | sed -n '\#/debian/*$#p')
	mirror=${mirror%%[[:space:]]*} # of one host: the first
	if [ -z "$mirror" ]; then
		echo "apt's sources have no mirror of Debian" >&2
		exit 2
	fi
	rm -rf "$folder" && mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
	apt=(-c "$folder/apt/conf")
	cat >"$folder/apt/conf" <<-END
		Dir::Etc::SourceList "$folder/apt/sources";
		Dir::Etc::SourceParts "-";
		Dir::State::Lists "$folder/apt/lists";
		Dir::Cache "$folder/apt";
		APT::Sandbox::User "";
		#clear APT::Update;
	END
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$folder/apt/sources"
	apt-get "${apt[@]}" update -q
	for _ in 1 2 3; do # what needs what needs what
		mapfile -t libraries < <(apt-cache "${apt[@]}" depends --important "${libraries[@]}" | sed -nE 's/^ *(Pre)?Depends: (lib[^ ]*|zlib1g)$/\2/p')
		packages+=("${libraries[@]}")
	done
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
	(cd "$folder/apt" && apt-get "${apt[@]}" download -q "${packages[@]}")
	for package in "$folder"/apt/*.deb; do dpkg -x "$package" "$folder"; done
	loader=$(echo "$folder"/usr/lib/*/ld-linux*.so.*)
	for program in "$name-server" "$name-cli"; do
		printf '#!/bin/sh\nexec %q --library-path %q --argv0 %s %q "$@"\n' \
			"$loader" "${loader%/*}" "$program" "$(readlink -e "$folder/usr/bin/$program")" >"$folder/$program"
		chmod +x "$folder/$program"
	done
	rm -rf "$folder/apt"
}

if [ $# = 0 ]; then
	echo "usage: scripts/servers.sh redis|valkey|FOLDER [ARGUMENTS OF go test]" >&2
	exit 2
fi
folder=$1
if [ "$1" = redis ] || [ "$1" = valkey ]; then
	folder=$PWD/bin/$1
	get "$1" "$folder" >&2
fi
folder=$(cd "$folder" && pwd)
shift
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT
for program in server cli; do
	for of in redis valkey; do
		if [ -x "$folder/$of-$program" ]; then
			ln -sf "$folder/$of-$program" "$names/redis-$program"
			break
		fi
	done
done
if ! [ -x "$names/redis-server" ]; then
	echo "$folder has neither redis-server nor valkey-server" >&2
	exit 2
fi
export PATH="$names:$PATH" PERKEY_REQUIRE_REDIS=1
echo "servers: $("$names/redis-server" --version)"
# Without the race detector: what is tried is the server.
scripts/gotest.sh "$@" ./core/... ./delayqueue ./httplock ./idempotency ./asynqlock ./config ./ops/...
