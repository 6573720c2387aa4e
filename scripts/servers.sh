#!/usr/bin/env bash
# Runs the tests that need a Redis on the servers in a folder, such as one with a build of
# Redis 6.2 or Valkey 8: redis-server and redis-cli, or Valkey's of those names.
# Further arguments go to `go test`.
#
#	scripts/servers.sh /opt/redis-6.2/bin
#	scripts/servers.sh /opt/valkey-8.0/bin -run Lease
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# = 0 ]; then
	echo "usage: scripts/servers.sh FOLDER [ARGUMENTS OF go test]" >&2
	exit 2
fi
folder=$(cd "$1" && pwd)
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
